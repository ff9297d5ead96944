package headrace;

import java.io.IOException;
import java.io.Serializable;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;

import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.LongAccumulator;

/**
 * Reads some partitions of a stream with one consumer, and gives a row for each record that is wanted.
 *
 * <p>Left out are records that are bad (or, of a reader for these, the good ones), tombstones, replayed letters for somebody
 * else, and what is quarantined. A bad one is only counted: whoever starts the query reads these again.
 */
final class RecordReader implements SupportsRealTimeRead<InternalRow> {
    private static final String HIDDEN = "__headrace_";
    private static final int OWN_HEADERS = 5;

    /** What is read and which columns are made of it; sent to wherever tasks run. */
    record Plan(String record, String[] hidden, int fields, String keep, String element, int source, Set<String> left)
            implements Serializable {
        static Plan of(StructType schema, CaseInsensitiveStringMap options) {
            String[] hidden = Arrays.stream(schema.fieldNames())
                    .filter(name -> name.startsWith(HIDDEN))
                    .map(name -> name.substring(HIDDEN.length()))
                    .toArray(String[]::new);
            String left = options.getOrDefault("headrace.quarantined", "");
            return new Plan(
                    options.get("headrace.record"),
                    hidden,
                    schema.length() - hidden.length,
                    options.getOrDefault("headrace.keep", "good"),
                    options.getOrDefault("headrace.element", ""),
                    options.getInt("headrace.source", 0),
                    left.isEmpty() ? Set.of() : new HashSet<>(Arrays.asList(left.split(","))));
        }
    }

    private final Plan plan;
    private final Reading.Part part;
    private final LongAccumulator all;
    private final LongAccumulator bad;
    private final Decoder decoder;
    private final Object[] values;
    private final InternalRow row;
    private final long[] next;
    private final long[] until;
    private final int[] places;
    private final byte[] time = new byte[27];
    private Consumer<byte[], byte[]> consumer;
    private Iterator<ConsumerRecord<byte[], byte[]>> polled = Collections.emptyIterator();
    private long read;
    private long badOnes;

    RecordReader(Plan plan, Reading.Part part, LongAccumulator all, LongAccumulator bad) {
        this.plan = plan;
        this.part = part;
        this.all = all;
        this.bad = bad;
        decoder = plan.record() == null ? null : Decoder.of(plan.record());
        values = new Object[plan.fields() + plan.hidden().length];
        row = new GenericInternalRow(values);
        next = part.from().clone();
        until = part.until().clone();
        places = new int[1 + Arrays.stream(part.partitions()).mapToInt(each -> each.partition()).max().getAsInt()];
        for (int i = 0; i < next.length; i++) {
            places[part.partitions()[i].partition()] = i;
        }
        consumer = Consumers.take(part.client(), part.partitions(), next, until);
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public PartitionOffset getOffset() {
        return new Reading.Places(part.partitions(), next.clone());
    }

    @Override
    public boolean next() throws IOException {
        long waitingSince = System.nanoTime();
        while (true) {
            if (take()) {
                return true;
            }
            if (isDone()) {
                return false;
            }
            poll(1000);
            if (polled.hasNext()) {
                waitingSince = System.nanoTime();
            } else if (System.nanoTime() - waitingSince > part.timeoutMs() * 1_000_000L) {
                throw new IOException("TimeoutException: Kafka gave no records of " + Arrays.toString(part.partitions())
                        + " from " + Arrays.toString(next) + " within " + part.timeoutMs() + " ms");
            }
        }
    }

    @Override
    public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
        return nextWithTimeout(timeoutMs);
    }

    @Override
    public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
        if (take()) {
            return RecordStatus.newStatusWithoutArrivalTime(true);
        }
        long deadline = System.nanoTime() + timeoutMs * 1_000_000L;
        do {
            poll(Math.max(0, (deadline - System.nanoTime()) / 1_000_000L));
            if (take()) {
                return RecordStatus.newStatusWithoutArrivalTime(true);
            }
        } while (System.nanoTime() < deadline);
        return RecordStatus.newStatusWithoutArrivalTime(false);
    }

    private void poll(long waitMs) {
        polled = consumer.poll(Duration.ofMillis(waitMs)).iterator();
    }

    /** Go on to the next row in what was polled, if there is one. */
    private boolean take() {
        while (polled.hasNext()) {
            ConsumerRecord<byte[], byte[]> record = polled.next();
            int place = places[record.partition()];
            if (record.offset() >= until[place]) {
                continue;
            }
            next[place] = record.offset() + 1;
            if (fill(record)) {
                return true;
            }
        }
        return false;
    }

    private boolean isDone() {
        for (int i = 0; i < next.length; i++) {
            // The last offsets of a range may hold no record: compaction and transactions leave gaps.
            if (next[i] < until[i] && consumer.position(part.partitions()[i]) < until[i]) {
                return false;
            }
        }
        return true;
    }

    private boolean fill(ConsumerRecord<byte[], byte[]> record) {
        boolean everything = plan.keep().equals("all");
        byte[] value = record.value();
        if (value == null && !everything) {
            return false;
        }
        Header[] headers = record.headers().toArray();
        boolean usual = headers.length == OWN_HEADERS && headers[OWN_HEADERS - 1].key().equals("ce_time");
        if (!usual && headers.length > 0 && isForOthers(headers)) {
            return false;
        }
        if (!plan.left().isEmpty() && plan.left().contains(record.partition() + "/" + record.offset())) {
            return false;
        }
        String problem = null;
        if (value != null) {
            read++;
            if (decoder != null) {
                problem = decoder.decode(value, values);
            } else if (plan.fields() > 0) {
                values[0] = value;
            }
            if (problem != null) {
                badOnes++;
            }
        }
        if (!everything && (problem == null) != plan.keep().equals("good")) {
            return false;
        }
        if (value == null || problem != null) {
            Arrays.fill(values, 0, plan.fields(), null);
        }
        for (int i = 0; i < plan.hidden().length; i++) {
            values[plan.fields() + i] = hidden(plan.hidden()[i], record, headers, usual, problem);
        }
        return true;
    }

    /** Whether this is a dead letter that is replayed for another element than this. */
    private boolean isForOthers(Header[] headers) {
        for (Header each : headers) {
            if (each.key().equals("__headrace.replay")) {
                return !new String(each.value(), java.nio.charset.StandardCharsets.UTF_8).equals(plan.element());
            }
        }
        return false;
    }

    private Object hidden(
            String name, ConsumerRecord<byte[], byte[]> record, Header[] headers, boolean usual, String problem) {
        switch (name) {
            case "place":
                return ((long) plan.source() << 58) + ((long) record.partition() << 44) + record.offset();
            case "sent":
                return sent(record, headers, usual);
            case "partition":
                return record.partition();
            case "offset":
                return record.offset();
            case "key":
                return record.key();
            case "value":
                return record.value();
            case "timestamp":
                return record.timestamp() * 1000;
            case "headers":
                return headers.length == 0 ? null : rows(headers);
            case "problem":
                return problem == null ? null : UTF8String.fromString(problem);
            case "bad":
                return record.value() == null ? null : (Object) (problem != null);
            default:
                throw new IllegalArgumentException("no column " + name);
        }
    }

    /** When a record was sent: its `ce_time`, else Kafka's timestamp. */
    private UTF8String sent(ConsumerRecord<byte[], byte[]> record, Header[] headers, boolean usual) {
        if (usual) {
            return UTF8String.fromBytes(headers[OWN_HEADERS - 1].value());
        }
        for (Header each : headers) {
            if (each.key().equals("ce_time") && each.value() != null) {
                return UTF8String.fromBytes(each.value());
            }
        }
        return UTF8String.fromBytes(Arrays.copyOf(time, Times.write(record.timestamp() * 1000, time, 0)));
    }

    private static GenericArrayData rows(Header[] headers) {
        Object[] found = new Object[headers.length];
        for (int i = 0; i < headers.length; i++) {
            found[i] = new GenericInternalRow(
                    new Object[] {UTF8String.fromString(headers[i].key()), headers[i].value()});
        }
        return new GenericArrayData(found);
    }

    @Override
    public void close() {
        if (all != null) {
            all.add(read);
            bad.add(badOnes);
            read = badOnes = 0;
        }
        if (consumer != null) {
            Consumers.give(part.client(), consumer);
            consumer = null;
        }
    }
}
