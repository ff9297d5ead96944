import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;

/** How far the source goes at the start of a bounded job, and whether all of it has been seen. */
final class Ends {

    private final Map<Integer, Long> last = new ConcurrentHashMap<>();
    private final CountDownLatch left;

    Ends(String address, String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            var asked = described.partitions().stream()
                    .collect(Collectors.toMap(each -> new TopicPartition(topic, each.partition()), each -> OffsetSpec.latest()));
            admin.listOffsets(asked).all().get().forEach((place, end) -> {
                if (end.offset() > 0) {
                    last.put(place.partition(), end.offset() - 1);
                }
            });
        }
        left = new CountDownLatch(last.size());
    }

    void await() throws InterruptedException {
        left.await();
    }

    /** Passes records on, and notices the last one of each partition. */
    <V> FixedKeyProcessor<String, V, V> watcher() {
        return new ContextualFixedKeyProcessor<>() {
            private long mine = -1;

            @Override
            public void process(FixedKeyRecord<String, V> record) {
                context().forward(record);
                var place = context().recordMetadata().get();
                if (mine < 0) {
                    mine = last.getOrDefault(place.partition(), Long.MAX_VALUE);
                }
                if (place.offset() == mine) {
                    left.countDown();
                }
            }
        };
    }
}
