package headrace;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

import org.apache.kafka.common.TopicPartition;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaMicroBatchStream;
import org.apache.spark.sql.kafka010.KafkaSourcePartitionOffset;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.LongAccumulator;

/** How one stream is read: its places come from Spark's connector, its records from {@link RecordReader}. */
final class Reading implements Scan {
    // The first checkpoints of a query come early, while it gets up to speed: the first ones hold records up for longest.
    private static final int EARLY = 3;
    private static final long EARLY_MS = 2_000;

    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Scan places;

    Reading(StructType schema, CaseInsensitiveStringMap options, Scan places) {
        this.schema = schema;
        this.options = options;
        this.places = places;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return "headrace " + options.get("subscribe");
    }

    /** How many tasks read the stream in real time, at most. */
    int tasks() {
        return options.getInt("headrace.tasks", Integer.MAX_VALUE);
    }

    @Override
    public Batch toBatch() {
        Batch inner = places.toBatch();
        return new Batch() {
            @Override
            public InputPartition[] planInputPartitions() {
                return tasks(inner.planInputPartitions(), Integer.MAX_VALUE);
            }

            @Override
            public PartitionReaderFactory createReaderFactory() {
                return factory(null, null);
            }
        };
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new Live((KafkaMicroBatchStream) places.toMicroBatchStream(checkpoint));
    }

    private Factory factory(LongAccumulator all, LongAccumulator bad) {
        return new Factory(RecordReader.Plan.of(schema, options), all, bad);
    }

    /** What one task reads: some partitions, each from an offset to another. */
    record Part(TopicPartition[] partitions, long[] from, long[] until, Map<String, Object> client, long timeoutMs)
            implements InputPartition {}

    /** How far a task has read, in each of its partitions. */
    record Places(TopicPartition[] partitions, long[] offsets) implements PartitionOffset {}

    private record Factory(RecordReader.Plan plan, LongAccumulator all, LongAccumulator bad)
            implements PartitionReaderFactory, Serializable {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new RecordReader(plan, (Part) partition, all, bad);
        }
    }

    /** The ranges that Spark has planned, dealt out to at most so many tasks. */
    private static InputPartition[] tasks(InputPartition[] planned, int most) {
        int count = Math.max(1, Math.min(most, planned.length));
        List<List<KafkaBatchInputPartition>> dealt = new ArrayList<>();
        for (int i = 0; i < planned.length; i++) {
            if (i < count) {
                dealt.add(new ArrayList<>());
            }
            dealt.get(i % count).add((KafkaBatchInputPartition) planned[i]);
        }
        return dealt.stream().map(Reading::part).toArray(InputPartition[]::new);
    }

    private static Part part(List<KafkaBatchInputPartition> ranges) {
        KafkaBatchInputPartition first = ranges.get(0);
        return new Part(
                ranges.stream().map(each -> each.offsetRange().topicPartition()).toArray(TopicPartition[]::new),
                ranges.stream().mapToLong(each -> each.offsetRange().fromOffset()).toArray(),
                ranges.stream().mapToLong(each -> each.offsetRange().untilOffset()).toArray(),
                first.executorKafkaParams(),
                first.pollTimeoutMs());
    }

    /** A stream that is followed, in batches or in real time. */
    final class Live
            implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
        private final KafkaMicroBatchStream inner;
        private Offset initial;
        private boolean isRealTime;
        private int batches;
        // How many records, and bad ones, were read in the batch: a query's progress tells it.
        private final LongAccumulator all = SparkSession.active().sparkContext().longAccumulator();
        private final LongAccumulator bad = SparkSession.active().sparkContext().longAccumulator();
        private long allBefore;
        private long badBefore;

        Live(KafkaMicroBatchStream inner) {
            this.inner = inner;
        }

        /** How long the next batch in real time is to last, of at most so many milliseconds. */
        long duration(long most) {
            return batches < EARLY ? Math.min(EARLY_MS, most) : most;
        }

        private void beginBatch() {
            allBefore = all.sum();
            badBefore = bad.sum();
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            beginBatch();
            return Reading.tasks(inner.planInputPartitions(start, end), Integer.MAX_VALUE);
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start) {
            beginBatch();
            return Reading.tasks(inner.planInputPartitions(start), tasks());
        }

        @Override
        public Offset mergeOffsets(PartitionOffset[] offsets) {
            batches++; // this is asked once, at the end of each
            List<PartitionOffset> each = new ArrayList<>();
            for (PartitionOffset one : offsets) {
                Places task = (Places) one;
                for (int i = 0; i < task.partitions().length; i++) {
                    each.add(new KafkaSourcePartitionOffset(task.partitions()[i], task.offsets()[i]));
                }
            }
            return inner.mergeOffsets(each.toArray(PartitionOffset[]::new));
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return factory(all, bad);
        }

        @Override
        public Map<String, String> metrics(Optional<Offset> latest) {
            // Spark's own ask the log how far it has come; in real time, records wait meanwhile.
            Map<String, String> found = isRealTime ? new TreeMap<>() : new TreeMap<>(inner.metrics(latest));
            found.put("records", Long.toString(all.sum() - allBefore));
            found.put("bad", Long.toString(bad.sum() - badBefore));
            return found;
        }

        @Override
        public void prepareForRealTimeMode() {
            isRealTime = true;
            inner.prepareForRealTimeMode();
        }

        @Override
        public void prepareForTriggerAvailableNow() {
            inner.prepareForTriggerAvailableNow();
        }

        @Override
        public Offset initialOffset() {
            if (initial == null) {
                initial = inner.initialOffset(); // out of a file of the checkpoint; Spark asks before each batch
            }
            return initial;
        }

        @Override
        public ReadLimit getDefaultReadLimit() {
            return inner.getDefaultReadLimit();
        }

        @Override
        public Offset reportLatestOffset() {
            return inner.reportLatestOffset();
        }

        @Override
        public Offset latestOffset() {
            return inner.latestOffset();
        }

        @Override
        public Offset latestOffset(Offset start, ReadLimit limit) {
            return inner.latestOffset(start, limit);
        }

        @Override
        public Offset deserializeOffset(String json) {
            return inner.deserializeOffset(json);
        }

        @Override
        public void commit(Offset end) {
            inner.commit(end);
        }

        @Override
        public void stop() {
            inner.stop();
        }

        @Override
        public String toString() {
            return inner.toString();
        }
    }
}
