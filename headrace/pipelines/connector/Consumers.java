package headrace;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** The consumers of this process that wait for their next task: to connect takes longer than many a batch. */
final class Consumers {
    private static final long EARLIEST = -2;
    private static final long LATEST = -1;
    private static final long IDLE_NS = 60_000_000_000L;

    private record Idle(Consumer<byte[], byte[]> consumer, long since) {}

    private static final Map<Map<String, Object>, Deque<Idle>> waiting = new HashMap<>();
    private static boolean isSwept;

    private Consumers() {}

    /**
     * A consumer with these options that reads these partitions from there on; it is the caller's until given back. Ranges
     * that begin or end where the log does are filled in.
     */
    static Consumer<byte[], byte[]> take(
            Map<String, Object> options, TopicPartition[] partitions, long[] from, long[] until) {
        Consumer<byte[], byte[]> consumer = find(options, new HashSet<>(Arrays.asList(partitions)));
        try {
            Set<TopicPartition> wanted = new HashSet<>(Arrays.asList(partitions));
            if (!consumer.assignment().equals(wanted)) {
                consumer.assign(wanted);
            }
            for (int i = 0; i < partitions.length; i++) {
                from[i] = offset(consumer, partitions[i], from[i]);
                until[i] = offset(consumer, partitions[i], until[i]);
                consumer.seek(partitions[i], from[i]);
            }
            return consumer;
        } catch (RuntimeException error) {
            close(consumer);
            throw error;
        }
    }

    private static long offset(Consumer<byte[], byte[]> consumer, TopicPartition partition, long known) {
        Set<TopicPartition> asked = Set.of(partition);
        if (known == EARLIEST) {
            return consumer.beginningOffsets(asked).get(partition);
        }
        return known == LATEST ? consumer.endOffsets(asked).get(partition) : known;
    }

    private static Consumer<byte[], byte[]> find(Map<String, Object> options, Set<TopicPartition> wanted) {
        synchronized (waiting) {
            Deque<Idle> idle = waiting.get(options);
            if (idle != null && !idle.isEmpty()) {
                for (Idle each : idle) {
                    if (each.consumer().assignment().equals(wanted)) {
                        idle.remove(each);
                        return each.consumer();
                    }
                }
                return idle.removeLast().consumer();
            }
        }
        return new KafkaConsumer<>(options);
    }

    /** Takes a consumer back; one whose task was interrupted is not trusted any more. */
    static void give(Map<String, Object> options, Consumer<byte[], byte[]> consumer) {
        if (Thread.currentThread().isInterrupted()) {
            close(consumer);
            return;
        }
        synchronized (waiting) {
            waiting.computeIfAbsent(options, each -> new ArrayDeque<>()).addLast(new Idle(consumer, System.nanoTime()));
            if (!isSwept) {
                isSwept = true;
                Thread sweeper = new Thread(Consumers::sweep, "headrace-consumers");
                sweeper.setDaemon(true);
                sweeper.start();
            }
        }
    }

    private static void sweep() {
        while (true) {
            try {
                Thread.sleep(10_000);
            } catch (InterruptedException end) {
                return;
            }
            List<Consumer<byte[], byte[]>> old = new ArrayList<>();
            synchronized (waiting) {
                for (Deque<Idle> idle : waiting.values()) {
                    while (!idle.isEmpty() && System.nanoTime() - idle.peekFirst().since() > IDLE_NS) {
                        old.add(idle.removeFirst().consumer());
                    }
                }
                waiting.values().removeIf(Deque::isEmpty);
            }
            old.forEach(Consumers::close);
        }
    }

    private static void close(Consumer<byte[], byte[]> consumer) {
        boolean interrupted = Thread.interrupted();
        try {
            consumer.close(Duration.ZERO);
        } catch (KafkaException gone) {
            // it holds nothing that would be missed
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
