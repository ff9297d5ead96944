import static org.apache.kafka.streams.StreamsConfig.globalConsumerPrefix;
import static org.apache.kafka.streams.StreamsConfig.mainConsumerPrefix;
import static org.apache.kafka.streams.StreamsConfig.restoreConsumerPrefix;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;

/**
 * A table of Kafka Streams in RocksDB: opened until it has all there is, then read.
 *
 * <p>{@code Restore global|table address stream folder keys count}: a global table has all partitions in each process,
 * as Headrace's tables have; the other one takes the stream for its changelog. {@code keys} is a folder with the keys to
 * read, or {@code -} to end when the table is ready.
 */
final class Restore {

    private static final String STORE = "customers";

    public static void main(String[] given) throws Exception {
        boolean global = given[0].equals("global");
        String keys = given[4];
        int count = Integer.parseInt(given[5]);
        Properties settings = settings(given[1], given[2], given[3]);
        StreamsBuilder builder = new StreamsBuilder();
        var kept = Materialized.<String, Customer, KeyValueStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String())
                .withValueSerde(Json.only(Json.reader(Customer::read)));
        if (global) {
            builder.globalTable(given[2], kept);
        } else {
            builder.table(given[2], kept.withCachingDisabled());
        }
        long began = System.nanoTime();
        try (KafkaStreams streams = new KafkaStreams(builder.build(settings), settings)) {
            CountDownLatch ready = new CountDownLatch(1);
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    ready.countDown();
                }
            });
            streams.start();
            ready.await();
            double opening = (System.nanoTime() - began) / 1e9;
            ReadOnlyKeyValueStore<String, Customer> store =
                    streams.store(StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
            say("\"opening\":%.4f,\"count\":%d", opening, store.approximateNumEntries());
            while (store.approximateNumEntries() < count * 0.99) {
                Thread.sleep(50); // the first time a table is read as a stream, not as its own changelog
            }
            if (!keys.equals("-")) {
                for (String name : List.of("alike", "skewed")) {
                    List<String> wanted = Files.readAllLines(Path.of(keys, name));
                    int warm = wanted.size() * 3 / 4;
                    read(store, wanted.subList(0, warm));
                    say("\"%s\":%.1f", name, read(store, wanted.subList(warm, wanted.size())));
                }
            }
            streams.close(Duration.ofSeconds(60));
        }
        System.exit(0);
    }

    private static double read(ReadOnlyKeyValueStore<String, Customer> store, List<String> keys) {
        long began = System.nanoTime();
        for (String key : keys) {
            Customer found = store.get(key);
            if (found == null || !found.id().equals(key)) {
                throw new AssertionError(key + " is not there");
            }
        }
        return keys.size() / ((System.nanoTime() - began) / 1e9);
    }

    private static void say(String format, Object... values) {
        System.out.println("{" + String.format(Locale.ROOT, format, values) + "}");
        System.out.flush();
    }

    private static Properties settings(String address, String stream, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "table-" + stream);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder + "/state");
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, Roomy.class);
        settings.put(mainConsumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        var bulk = Map.of(
                ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000,
                ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 4 << 20,
                // A global table is restored partition by partition: with 500 ms, each waits for the one before.
                ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 10);
        bulk.forEach((name, value) -> {
            settings.put(mainConsumerPrefix(name), value);
            settings.put(restoreConsumerPrefix(name), value);
            settings.put(globalConsumerPrefix(name), value);
        });
        Job.others(settings);
        return settings;
    }

    /** A block cache that holds the whole table, as the documentation shows how to set; the default is 50 MB. */
    public static final class Roomy implements RocksDBConfigSetter {

        private static final LRUCache CACHE = new LRUCache(512L << 20);

        @Override
        public void setConfig(String store, Options options, Map<String, Object> settings) {
            var table = (BlockBasedTableConfig) options.tableFormatConfig();
            table.setBlockCache(CACHE);
            options.setTableFormatConfig(table);
        }

        @Override
        public void close(String store, Options options) {}
    }
}
