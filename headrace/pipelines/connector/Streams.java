package headrace;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.kafka010.KafkaSourceProvider;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Streams of records as a source and a sink of Spark: `format("headrace.Streams")`.
 *
 * <p>Where a stream begins and ends, how much of it a batch takes, and what stands in a checkpoint is left to Spark's own
 * connector to Kafka and its options. This one reads and writes the records: JSON becomes columns, and columns JSON, without
 * rows of bytes and headers in between; and one task may read several partitions.
 */
public final class Streams implements TableProvider {
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        String schema = options.get("headrace.schema");
        return schema == null ? new StructType() : (StructType) DataType.fromJson(schema);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new StreamTable(inferSchema(new CaseInsensitiveStringMap(properties)));
    }

    private record StreamTable(StructType schema) implements Table, SupportsRead, SupportsWrite {
        @Override
        public String name() {
            return "headrace";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return EnumSet.of(
                    TableCapability.BATCH_READ,
                    TableCapability.MICRO_BATCH_READ,
                    TableCapability.BATCH_WRITE,
                    TableCapability.STREAMING_WRITE,
                    TableCapability.ACCEPT_ANY_SCHEMA);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            Scan places = new KafkaSourceProvider().getTable(options).newScanBuilder(options).build();
            return () -> new Reading(schema, options, places);
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new Writing(info.schema(), info.options());
        }
    }
}
