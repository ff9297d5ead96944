package headrace;

import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
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
 * they are the same task. Spark would send each record from one to the other over a socket.
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
                        return new InOneTask();
                    }
                };
            }
        });
        return BoxedUnit.UNIT;
    }

    private static final class InOneTask extends Rule<SparkPlan> {
        @Override
        public SparkPlan apply(SparkPlan plan) {
            List<SparkPlan> children = CollectionConverters.asJava(plan.children());
            if (children.isEmpty()) {
                return plan;
            }
            List<SparkPlan> below = new ArrayList<>();
            children.forEach(child -> below.add(apply(child)));
            if (plan instanceof ShuffleExchangeExec exchange
                    && exchange.outputPartitioning().numPartitions() == 1
                    && isOneTask(below.get(0))) {
                return below.get(0);
            }
            if (below.equals(children)) {
                return plan;
            }
            return plan.withNewChildren(ArraySeq.unsafeWrapArray(below.toArray(SparkPlan[]::new)));
        }

        /** Whether a plan's rows all come out of one task that reads a stream in real time. */
        private static boolean isOneTask(SparkPlan plan) {
            if (plan instanceof RealTimeStreamScanExec live) {
                return live.scan() instanceof Reading reading && reading.tasks() == 1;
            }
            List<SparkPlan> rows = new ArrayList<>();
            for (SparkPlan child : CollectionConverters.asJava(plan.children())) {
                if (!(child instanceof BroadcastExchangeLike || child instanceof ReusedExchangeExec)) {
                    rows.add(child);
                }
            }
            return rows.size() == 1 && isOneTask(rows.get(0));
        }
    }
}
