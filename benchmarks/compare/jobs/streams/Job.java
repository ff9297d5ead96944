import static org.apache.kafka.streams.StreamsConfig.consumerPrefix;
import static org.apache.kafka.streams.StreamsConfig.mainConsumerPrefix;
import static org.apache.kafka.streams.StreamsConfig.producerPrefix;

import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers;
import org.apache.kafka.streams.state.WindowStore;

/** The jobs, with Kafka Streams' DSL. A bounded one ends when all that was there has been written and committed. */
final class Job {

    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Purchase> PURCHASE = Json.only(Json.reader(Purchase::read));

    private final StreamsBuilder builder = new StreamsBuilder();
    private final String source;
    private final String target;
    private final Ends ends;

    private Job(String source, String target, Ends ends) {
        this.source = source;
        this.target = target;
        this.ends = ends;
    }

    public static void main(String[] given) throws Exception {
        String kind = given[0];
        String address = given[1];
        boolean bounded = kind.equals("map") || kind.equals("window");
        Ends ends = bounded ? new Ends(address, given[2]) : null;
        Job job = new Job(given[2], given[3], ends);
        if (kind.equals("alert") || kind.equals("map")) {
            job.alerts();
        } else {
            job.counts();
        }
        Properties settings = settings(address, given[3], given[4], bounded);
        KafkaStreams streams = new KafkaStreams(job.builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        if (bounded) {
            ends.await();
            System.exit(streams.close(Duration.ofSeconds(60)) ? 0 : 1);
        }
        new CountDownLatch(1).await();
    }

    private void alerts() {
        var read = Consumed.with(TEXT, PURCHASE);
        watched(builder.stream(source, read))
                .filter((customer, purchase) -> purchase.amount() > 100)
                .mapValues(Alert::of)
                .to(target, Produced.with(TEXT, Json.only(Json.<Alert>writer(Alert::write))));
    }

    private void counts() {
        var read = Consumed.with(TEXT, PURCHASE)
                .withTimestampExtractor((record, soFar) -> Instant.parse(((Purchase) record.value()).at()).toEpochMilli());
        var minutes = TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10));
        watched(builder.stream(source, read))
                .groupByKey(Grouped.with(TEXT, PURCHASE))
                .windowedBy(minutes)
                .aggregate(
                        () -> Count.NONE,
                        (customer, purchase, count) -> count.and(purchase),
                        Materialized.<String, Count, WindowStore<Bytes, byte[]>>as("counts")
                                .withKeySerde(TEXT)
                                .withValueSerde(Count.serde()))
                .toStream()
                .process(Outgoing::new)
                .to(target, Produced.with(TEXT, Json.only(Json.<Count.Minute>writer(Count.Minute::write))));
    }

    private KStream<String, Purchase> watched(KStream<String, Purchase> purchases) {
        return ends == null ? purchases : purchases.processValues(ends::watcher);
    }

    /** Gives a count its minute; written now, so that the broker does not take it for as old as the purchase. */
    private static final class Outgoing extends ContextualProcessor<Windowed<String>, Count, String, Count.Minute> {

        @Override
        public void process(Record<Windowed<String>, Count> record) {
            Windowed<String> key = record.key();
            var minute = new Count.Minute(key.key(), key.window().startTime(), record.value());
            context().forward(new Record<>(key.key(), minute, System.currentTimeMillis()));
        }
    }

    private static Properties settings(String address, String target, String folder, boolean bounded) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + target);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder + "/state");
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.AT_LEAST_ONCE);
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, InMemoryDslStoreSuppliers.class);
        settings.put(mainConsumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(consumerPrefix(ConsumerConfig.FETCH_MIN_BYTES_CONFIG), 1);
        settings.put(producerPrefix(ProducerConfig.ACKS_CONFIG), "all");
        if (bounded) {
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 128L << 20);
            settings.put(mainConsumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
            settings.put(producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
            settings.put(producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 262_144);
        } else {
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0L);
            settings.put(producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 0);
        }
        others(settings);
        return settings;
    }

    /** What is given to Java as -Dset.commit.interval.ms=100, say: to try other settings. */
    static void others(Properties settings) {
        System.getProperties().forEach((name, value) -> {
            if (name.toString().startsWith("set.")) {
                settings.put(name.toString().substring("set.".length()), value);
            }
        });
    }
}
