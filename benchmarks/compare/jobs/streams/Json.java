import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;

/** JSON by Jackson's streams of tokens, which is faster than trees and than data binding. */
final class Json {

    private static final JsonFactory FACTORY = new JsonFactory();

    interface Reading<T> {
        T read(JsonParser json) throws IOException;
    }

    interface Writing<T> {
        void write(T value, JsonGenerator json) throws IOException;
    }

    static <T> Deserializer<T> reader(Reading<T> reading) {
        return (topic, bytes) -> {
            if (bytes == null) {
                return null;
            }
            try (JsonParser json = FACTORY.createParser(bytes)) {
                return reading.read(json);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
    }

    static <T> Serializer<T> writer(Writing<T> writing) {
        return (topic, value) -> {
            if (value == null) {
                return null;
            }
            var out = new ByteArrayOutputStream(160);
            try (JsonGenerator json = FACTORY.createGenerator(out)) {
                writing.write(value, json);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return out.toByteArray();
        };
    }

    static <T> Serde<T> only(Deserializer<T> reader) {
        return Serdes.serdeFrom(writer((value, json) -> {
            throw new UnsupportedOperationException("never written");
        }), reader);
    }

    static <T> Serde<T> only(Serializer<T> writer) {
        return Serdes.serdeFrom(writer, (topic, bytes) -> {
            throw new UnsupportedOperationException("never read");
        });
    }

    private Json() {}
}
