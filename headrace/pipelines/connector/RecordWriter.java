package headrace;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.kafka010.producer.CachedKafkaProducer;
import org.apache.spark.sql.kafka010.producer.InternalKafkaProducerPool$;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes rows as records of a stream, with the headers of the wire format.
 *
 * <p>An id is made of what caused the row and of its content, so that a row that is emitted again has the same; a column for
 * the id replaces it. All are acknowledged when `commit` returns; the first failure is thrown by whatever is called next.
 */
final class RecordWriter implements DataWriter<InternalRow> {
    private static final WriterCommitMessage DONE = new Done();
    private static final long SEED = 42;
    private static final Header VERSION = header("ce_specversion", "1.0");

    private record Done() implements WriterCommitMessage {}

    private final Writing.Plan plan;
    private final Encoder encoder;
    private final Header source;
    private final Header type;
    private final int key;
    private final int value;
    private final int id;
    private final int place;
    private final int time;
    private final int sent;
    private final CachedKafkaProducer held;
    private volatile Exception failure;
    private final Callback onAnswer = (metadata, error) -> {
        if (error != null && failure == null) {
            failure = error;
        }
    };

    RecordWriter(Writing.Plan plan) {
        this.plan = plan;
        encoder = new Encoder(plan.columns(), plan.nulls());
        source = header("ce_source", plan.source());
        type = header("ce_type", plan.type());
        key = column("key");
        value = column("value");
        id = column("id");
        place = column("place");
        time = column("time");
        sent = column("sent");
        held = plan.dry() ? null : InternalKafkaProducerPool$.MODULE$.acquire(plan.client());
    }

    private int column(String name) {
        return plan.hidden().getOrDefault(name, -1);
    }

    private static Header header(String name, String text) {
        return new RecordHeader(name, text.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public void write(InternalRow row) {
        check();
        byte[] keyBytes = key < 0 || row.isNullAt(key) ? null : row.getUTF8String(key).getBytes();
        byte[] bytes = plan.bytes() ? (row.isNullAt(value) ? null : row.getBinary(value)) : encoder.encode(row);
        if (held == null) {
            return;
        }
        Iterable<Header> headers = plan.bytes() ? null : headers(row, keyBytes, bytes);
        held.producer().send(new ProducerRecord<>(plan.stream(), null, keyBytes, bytes, headers), onAnswer);
    }

    private Iterable<Header> headers(InternalRow row, byte[] keyBytes, byte[] bytes) {
        byte[] written = id >= 0 && !row.isNullAt(id) ? row.getUTF8String(id).getBytes() : made(row, keyBytes, bytes);
        return List.of(
                VERSION, source, type, new RecordHeader("ce_id", written), new RecordHeader("ce_time", when(row)));
    }

    private byte[] made(InternalRow row, byte[] keyBytes, byte[] bytes) {
        long hash = keyBytes == null ? SEED : hash(keyBytes, SEED);
        StringBuilder text = new StringBuilder(plan.source().length() + 60).append(plan.source());
        if (place >= 0) {
            text.append('-').append(row.getLong(place));
        }
        if (time >= 0 && !row.isNullAt(time)) {
            text.append('-').append(row.getLong(time));
        }
        text.append('-').append(Long.toHexString(hash(bytes, hash)).toUpperCase(java.util.Locale.ROOT));
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static long hash(byte[] bytes, long seed) {
        return XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, seed);
    }

    private byte[] when(InternalRow row) {
        if (sent >= 0 && !row.isNullAt(sent)) {
            return row.getUTF8String(sent).getBytes();
        }
        boolean known = time >= 0 && !row.isNullAt(time);
        byte[] text = new byte[27];
        Times.write(known ? row.getLong(time) : System.currentTimeMillis() * 1000, text, 0);
        return text;
    }

    private void check() {
        if (failure != null) {
            throw failure instanceof RuntimeException error ? error : new RuntimeException(failure);
        }
    }

    @Override
    public WriterCommitMessage commit() {
        if (held != null) {
            held.producer().flush();
        }
        check();
        return DONE;
    }

    @Override
    public void abort() {}

    @Override
    public void close() {
        if (held != null) {
            InternalKafkaProducerPool$.MODULE$.release(held);
        }
    }
}
