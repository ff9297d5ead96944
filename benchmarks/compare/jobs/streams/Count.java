import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Instant;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** What is known of one customer's minute; 16 bytes in the state store. */
record Count(long purchases, double sent) {

    static final Count NONE = new Count(0, 0);

    Count and(Purchase purchase) {
        return new Count(purchases + 1, Math.max(sent, purchase.sent()));
    }

    static Serde<Count> serde() {
        return Serdes.serdeFrom(
                (topic, count) -> count == null
                        ? null
                        : ByteBuffer.allocate(16).putLong(count.purchases).putDouble(count.sent).array(),
                (topic, bytes) -> {
                    if (bytes == null) {
                        return null;
                    }
                    ByteBuffer buffer = ByteBuffer.wrap(bytes);
                    return new Count(buffer.getLong(), buffer.getDouble());
                });
    }

    /** The count with its minute, as it goes out. */
    record Minute(String customer, Instant start, Count count) {

        void write(JsonGenerator json) throws IOException {
            json.writeStartObject();
            json.writeStringField("customer", customer);
            json.writeStringField("start", start.toString());
            json.writeNumberField("purchases", count.purchases);
            json.writeNumberField("sent", count.sent);
            json.writeEndObject();
        }
    }
}
