package headrace;

import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.rdd.CoalescedRDD;
import org.apache.spark.rdd.CoalescedRDDPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.util.TaskCompletionListener;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/**
 * Brings the rows of several streams that are read in real time together in one task, each as it comes.
 *
 * <p>A thread for each stream reads and works on its rows up to here; the task's own thread goes on with them. Spark would have a
 * task for each, and send the rows to another over a socket.
 */
public final class Gathering extends CoalesceExec {
    private static final int READ_AHEAD = 1024;

    public Gathering(int partitions, SparkPlan child) {
        super(partitions, child);
    }

    @Override
    public RDD<InternalRow> doExecute() {
        return new Rows(child().execute());
    }

    @Override
    public CoalesceExec withNewChildInternal(SparkPlan child) {
        return new Gathering(1, child);
    }

    private static final class Rows extends CoalescedRDD<InternalRow> {
        Rows(RDD<InternalRow> all) {
            super(all, 1, Option.empty(), ClassTag.apply(InternalRow.class));
        }

        @Override
        public Iterator<InternalRow> compute(Partition split, TaskContext context) {
            RDD<InternalRow> parent = this.<InternalRow>firstParent(ClassTag.apply(InternalRow.class));
            List<Partition> parts = CollectionConverters.asJava(((CoalescedRDDPartition) split).parents());
            Merged merged = new Merged(parts.size());
            Thread[] threads = parts.stream()
                    .map(part -> new Thread(() -> merged.read(parent, part, context), "headrace-gathering"))
                    .toArray(Thread[]::new);
            context.addTaskCompletionListener((TaskCompletionListener) done -> end(threads));
            for (Thread each : threads) {
                each.setDaemon(true);
                each.start();
            }
            return merged;
        }

        /** What reads must have ended before the task has: it gives back what it holds. */
        private static void end(Thread[] threads) {
            boolean interrupted = false;
            for (Thread each : threads) {
                each.interrupt();
                try {
                    each.join(10_000);
                } catch (InterruptedException again) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static final class Merged extends AbstractIterator<InternalRow> {
        private record End(Throwable failure) {}

        private final BlockingQueue<Object> queue = new ArrayBlockingQueue<>(READ_AHEAD);
        private int open;
        private InternalRow next;

        Merged(int sources) {
            open = sources;
        }

        void read(RDD<InternalRow> rows, Partition part, TaskContext context) {
            TaskContext$.MODULE$.setTaskContext(context);
            Throwable failure = null;
            try {
                Iterator<InternalRow> found = rows.iterator(part, context);
                while (found.hasNext()) {
                    queue.put(found.next().copy());
                }
            } catch (Throwable error) {
                failure = error;
            }
            try {
                queue.put(new End(failure));
            } catch (InterruptedException over) {
                // nobody waits for it any more
            }
        }

        @Override
        public boolean hasNext() {
            try {
                while (next == null && open > 0) {
                    Object taken = queue.take();
                    if (taken instanceof InternalRow row) {
                        next = row;
                        continue;
                    }
                    open--;
                    fail(((End) taken).failure());
                }
            } catch (InterruptedException over) {
                Thread.currentThread().interrupt();
                throw new org.apache.spark.TaskKilledException("interrupted");
            }
            return next != null;
        }

        private static void fail(Throwable failure) {
            if (failure instanceof RuntimeException error) {
                throw error;
            }
            if (failure instanceof Error error) {
                throw error;
            }
            if (failure != null) {
                throw new RuntimeException(failure);
            }
        }

        @Override
        public InternalRow next() {
            hasNext();
            InternalRow row = next;
            next = null;
            return row;
        }
    }
}
