package headrace;

import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** How rows are written to one stream: {@link RecordWriter} makes records of them. At least once: nothing is taken back. */
final class Writing implements WriteBuilder, Write, SupportsStreamingUpdateAsAppend {
    private static final String CLIENT = "kafka.";

    /** What is written and to where; sent to wherever tasks run. */
    record Plan(
            StructField[] columns,
            String nulls,
            boolean bytes,
            Map<String, Integer> hidden,
            String stream,
            String source,
            String type,
            boolean dry,
            Map<String, Object> client)
            implements Serializable {}

    private final Plan plan;

    Writing(StructType schema, CaseInsensitiveStringMap options) {
        Map<String, Integer> hidden = new HashMap<>();
        int fields = 0;
        for (int i = 0; i < schema.length(); i++) {
            String name = schema.fields()[i].name();
            if (name.startsWith("__headrace_")) {
                hidden.put(name.substring("__headrace_".length()), i);
            } else {
                fields++;
            }
        }
        plan = new Plan(
                Arrays.copyOf(schema.fields(), fields),
                options.getOrDefault("headrace.nulls", ""),
                options.getBoolean("headrace.bytes", false),
                hidden,
                options.get("topic"),
                options.getOrDefault("headrace.from", ""),
                options.getOrDefault("headrace.type", ""),
                options.getBoolean("headrace.dry", false),
                client(options));
    }

    private static Map<String, Object> client(CaseInsensitiveStringMap options) {
        Map<String, Object> found = new HashMap<>();
        options.asCaseSensitiveMap().forEach((name, value) -> {
            if (name.toLowerCase(java.util.Locale.ROOT).startsWith(CLIENT)) {
                found.put(name.substring(CLIENT.length()), value);
            }
        });
        found.put("key.serializer", ByteArraySerializer.class.getName());
        found.put("value.serializer", ByteArraySerializer.class.getName());
        return found;
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public BatchWrite toBatch() {
        return new BatchWrite() {
            @Override
            public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
                return new Factory(plan);
            }

            @Override
            public boolean useCommitCoordinator() {
                return false;
            }

            @Override
            public void commit(WriterCommitMessage[] messages) {}

            @Override
            public void abort(WriterCommitMessage[] messages) {}
        };
    }

    @Override
    public StreamingWrite toStreaming() {
        return new StreamingWrite() {
            @Override
            public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
                return new Factory(plan);
            }

            @Override
            public boolean useCommitCoordinator() {
                return false;
            }

            @Override
            public void commit(long batch, WriterCommitMessage[] messages) {}

            @Override
            public void abort(long batch, WriterCommitMessage[] messages) {}
        };
    }

    private record Factory(Plan plan) implements DataWriterFactory, StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new RecordWriter(plan);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long batch) {
            return new RecordWriter(plan);
        }
    }
}
