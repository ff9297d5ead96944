import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;

/** What comes in. The time stays a text until somebody asks for it. */
record Purchase(String id, String customer, double amount, double sent, String at) {

    static Purchase read(JsonParser json) throws IOException {
        String id = null;
        String customer = null;
        String at = null;
        double amount = 0;
        double sent = 0;
        json.nextToken();
        while (json.nextToken() == JsonToken.FIELD_NAME) {
            String field = json.currentName();
            json.nextToken();
            switch (field) {
                case "id" -> id = json.getText();
                case "customer" -> customer = json.getText();
                case "amount" -> amount = json.getDoubleValue();
                case "sent" -> sent = json.getDoubleValue();
                case "at" -> at = json.getText();
                default -> json.skipChildren();
            }
        }
        return new Purchase(id, customer, amount, sent, at);
    }
}
