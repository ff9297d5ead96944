package headrace;

import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;
import org.apache.spark.sql.execution.exchange.BroadcastExchangeLike;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import scala.collection.immutable.ArraySeq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * What a session plans otherwise than Spark does: where one task reads all of a stream in real time and one keeps the state,
 * they are the same task, and so are those that read several streams. Spark would send each record from one to the other over
 * a socket. And the first batches in real time are as short as {@link Reading.Live} wishes.
 */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        extensions.injectColumnar(new AbstractFunction1<SparkSession, ColumnarRule>() {
            @Override
            public ColumnarRule apply(SparkSession session) {
                return new ColumnarRule() {
                    @Override
                    public Rule<SparkPlan> preColumnarTransitions() {
                        return new InRealTime();
                    }
                };
            }
        });
        return BoxedUnit.UNIT;
    }

    private static final class InRealTime extends Rule<SparkPlan> {
        @Override
        public SparkPlan apply(SparkPlan plan) {
            if (plan instanceof RealTimeStreamScanExec live) {
                return withDuration(live);
            }
            List<SparkPlan> children = CollectionConverters.asJava(plan.children());
            if (children.isEmpty()) {
                return plan;
            }
            List<SparkPlan> below = new ArrayList<>();
            children.forEach(child -> below.add(apply(child)));
            if (plan instanceof ShuffleExchangeExec exchange && exchange.outputPartitioning().numPartitions() == 1) {
                int tasks = tasks(below.get(0));
                if (tasks > 0) {
                    return tasks == 1 ? below.get(0) : new Gathering(1, below.get(0));
                }
            }
            if (below.equals(children)) {
                return plan;
            }
            return plan.withNewChildren(ArraySeq.unsafeWrapArray(below.toArray(SparkPlan[]::new)));
        }

        private static SparkPlan withDuration(RealTimeStreamScanExec scan) {
            long most = scan.batchDurationMs();
            long wanted = scan.stream() instanceof Reading.Live live ? live.duration(most) : most;
            if (wanted == most) {
                return scan;
            }
            SparkPlan shorter =
                    new RealTimeStreamScanExec(scan.output(), scan.scan(), scan.stream(), scan.start(), wanted);
            shorter.copyTagsFrom(scan);
            return shorter;
        }

        /** How many tasks a plan has if each of them reads one stream in real time; -1 if others have part in it. */
        private static int tasks(SparkPlan plan) {
            if (plan instanceof RealTimeStreamScanExec live) {
                return live.scan() instanceof Reading reading && reading.tasks() == 1 ? 1 : -1;
            }
            if (plan instanceof Gathering) {
                return 1;
            }
            int found = 0;
            for (SparkPlan child : CollectionConverters.asJava(plan.children())) {
                if (!(child instanceof BroadcastExchangeLike || child instanceof ReusedExchangeExec)) {
                    int below = tasks(child);
                    if (below < 0 || found > 0 && !(plan instanceof UnionExec)) {
                        return -1;
                    }
                    found += below;
                }
            }
            return found == 0 ? -1 : found;
        }
    }
}
