import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;

/** A purchase that was large. */
record Alert(String customer, String purchase, double amount, double sent) {

    static Alert of(Purchase purchase) {
        return new Alert(purchase.customer(), purchase.id(), purchase.amount(), purchase.sent());
    }

    void write(JsonGenerator json) throws IOException {
        json.writeStartObject();
        json.writeStringField("customer", customer);
        json.writeStringField("purchase", purchase);
        json.writeNumberField("amount", amount);
        json.writeNumberField("sent", sent);
        json.writeEndObject();
    }
}
