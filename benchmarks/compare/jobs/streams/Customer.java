import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.Instant;

/** What the table holds. */
record Customer(String id, String name, String zipCode, double spent, Instant at) {

    static Customer read(JsonParser json) throws IOException {
        String id = null;
        String name = null;
        String zipCode = null;
        double spent = 0;
        Instant at = null;
        json.nextToken();
        while (json.nextToken() == JsonToken.FIELD_NAME) {
            String field = json.currentName();
            json.nextToken();
            switch (field) {
                case "id" -> id = json.getText();
                case "name" -> name = json.getText();
                case "zip_code" -> zipCode = json.getText();
                case "spent" -> spent = json.getDoubleValue();
                case "at" -> at = Instant.parse(json.getText());
                default -> json.skipChildren();
            }
        }
        return new Customer(id, name, zipCode, spent, at);
    }
}
