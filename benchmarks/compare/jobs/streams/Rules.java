import static org.apache.kafka.streams.StreamsConfig.mainConsumerPrefix;
import static org.apache.kafka.streams.StreamsConfig.producerPrefix;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** The three rules on two streams: one processor, which keeps in a store what is known of each customer. */
final class Rules {

    private static final long RAPID_MS = 10_000;
    private static final long PHONE_MS = 60_000;
    private static final double PHONE_KM = 20;
    private static final String STORE = "customers";

    public static void main(String[] given) throws Exception {
        String[] sources = given[2].split(",");
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(STORE), Serdes.String(), Customer.serde()));
        builder.stream(List.of(sources), Consumed.with(Serdes.String(), Json.only(Json.reader(Event::read))))
                .process(Judge::new, STORE)
                .to(given[3], Produced.with(Serdes.String(), Json.only(Json.<Broken>writer(Broken::write))));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(given[1], given[3], given[4]));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        new CountDownLatch(1).await();
    }

    private static Properties settings(String address, String target, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + target);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder + "/state");
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.AT_LEAST_ONCE);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0L);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000L);
        // Which of the two streams is read first does not matter: nobody waits for the other.
        settings.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, -1L);
        settings.put(mainConsumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(producerPrefix(ProducerConfig.ACKS_CONFIG), "all");
        settings.put(producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 0);
        return settings;
    }

    private static final class Judge extends ContextualProcessor<String, Event, String, Broken> {

        private KeyValueStore<String, Customer> customers;

        @Override
        public void init(ProcessorContext<String, Broken> context) {
            super.init(context);
            customers = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<String, Event> record) {
            Customer kept = customers.get(record.key());
            Customer customer = kept == null ? new Customer() : kept;
            if (record.value().id() == null) {
                seen(customer, record);
            } else {
                paid(customer, record);
            }
            customers.put(record.key(), customer);
        }

        private void paid(Customer customer, Record<String, Event> record) {
            Event now = record.value();
            if (customer.payments > 0 && now.atMs() - customer.lastMs <= RAPID_MS) {
                tell(record, now.id(), "rapid");
            }
            if (customer.payments > 0 && now.amount() > customer.most) {
                tell(record, now.id(), "larger");
            }
            customer.seen.removeIf(each -> now.atMs() - each.atMs > PHONE_MS);
            boolean away = customer.seen.stream().anyMatch(each -> now.isAway(each));
            if (away) {
                tell(record, now.id(), "elsewhere");
            }
            customer.payments++;
            customer.most = Math.max(customer.most, now.amount());
            customer.lastMs = now.atMs();
            customer.paid.add(new Spot(now.id(), now.latitude(), now.longitude(), now.atMs(), away));
        }

        /** What the phone, which is never seen earlier than now again, cannot tell of any more is forgotten. */
        private void seen(Customer customer, Record<String, Event> record) {
            Event now = record.value();
            customer.paid.removeIf(each -> now.atMs() - each.atMs > PHONE_MS);
            customer.paid.replaceAll(each -> {
                if (each.told || !now.isAway(each)) {
                    return each;
                }
                tell(record, each.id, "elsewhere");
                return new Spot(each.id, each.latitude, each.longitude, each.atMs, true);
            });
            customer.seen.add(new Spot("", now.latitude(), now.longitude(), now.atMs(), false));
        }

        private void tell(Record<String, Event> record, String transaction, String rule) {
            context().forward(record.withValue(new Broken(rule, record.key(), transaction, record.value().sent())));
        }
    }

    /** A transaction, or without an id the place of a phone. */
    private record Event(String id, double amount, double latitude, double longitude, long atMs, double sent) {

        static Event read(JsonParser json) throws IOException {
            String id = null;
            double amount = 0;
            double latitude = 0;
            double longitude = 0;
            double sent = 0;
            long atMs = 0;
            json.nextToken();
            while (json.nextToken() == JsonToken.FIELD_NAME) {
                String field = json.currentName();
                json.nextToken();
                switch (field) {
                    case "id" -> id = json.getText();
                    case "amount" -> amount = json.getDoubleValue();
                    case "latitude" -> latitude = json.getDoubleValue();
                    case "longitude" -> longitude = json.getDoubleValue();
                    case "sent" -> sent = json.getDoubleValue();
                    case "at" -> atMs = Instant.parse(json.getText()).toEpochMilli();
                    default -> json.skipChildren();
                }
            }
            return new Event(id, amount, latitude, longitude, atMs, sent);
        }

        /** At nearly the same time, and too far apart. */
        boolean isAway(Spot spot) {
            if (Math.abs(atMs - spot.atMs) > PHONE_MS) {
                return false;
            }
            double up = Math.sin(Math.toRadians(latitude - spot.latitude) / 2);
            double along = Math.sin(Math.toRadians(longitude - spot.longitude) / 2);
            double narrow = Math.cos(Math.toRadians(latitude)) * Math.cos(Math.toRadians(spot.latitude));
            return 12742 * Math.asin(Math.sqrt(up * up + narrow * along * along)) > PHONE_KM;
        }
    }

    private record Broken(String rule, String customer, String transaction, double sent) {

        void write(JsonGenerator json) throws IOException {
            json.writeStartObject();
            json.writeStringField("id", transaction + "/" + rule);
            json.writeStringField("rule", rule);
            json.writeStringField("customer", customer);
            json.writeStringField("transaction", transaction);
            json.writeNumberField("sent", sent);
            json.writeEndObject();
        }
    }

    private record Spot(String id, double latitude, double longitude, long atMs, boolean told) {

        void write(DataOutputStream out) throws IOException {
            out.writeUTF(id);
            out.writeDouble(latitude);
            out.writeDouble(longitude);
            out.writeLong(atMs);
            out.writeBoolean(told);
        }

        static Spot read(DataInputStream in) throws IOException {
            return new Spot(in.readUTF(), in.readDouble(), in.readDouble(), in.readLong(), in.readBoolean());
        }
    }

    private static final class Customer {

        int payments;
        double most;
        long lastMs;
        final List<Spot> paid = new ArrayList<>();
        final List<Spot> seen = new ArrayList<>();

        static Serde<Customer> serde() {
            return Serdes.serdeFrom((topic, customer) -> customer.written(), (topic, bytes) -> read(bytes));
        }

        private byte[] written() {
            var bytes = new ByteArrayOutputStream(512);
            try (var out = new DataOutputStream(bytes)) {
                out.writeInt(payments);
                out.writeDouble(most);
                out.writeLong(lastMs);
                for (List<Spot> spots : List.of(paid, seen)) {
                    out.writeInt(spots.size());
                    for (Spot spot : spots) {
                        spot.write(out);
                    }
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return bytes.toByteArray();
        }

        private static Customer read(byte[] bytes) {
            if (bytes == null) {
                return null;
            }
            Customer customer = new Customer();
            try (var in = new DataInputStream(new ByteArrayInputStream(bytes))) {
                customer.payments = in.readInt();
                customer.most = in.readDouble();
                customer.lastMs = in.readLong();
                for (List<Spot> spots : List.of(customer.paid, customer.seen)) {
                    for (int left = in.readInt(); left > 0; left--) {
                        spots.add(Spot.read(in));
                    }
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return customer;
        }
    }

    private Rules() {}
}
