package headrace;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.DeduplicateWithinWatermark;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import scala.Option;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Looks into logical plans for plan.py, in one call each: what Python asks of a Java that has just started, it waits for,
 * some ten milliseconds for each class that it has not asked about before.
 */
public final class Plans {
    private static final String NODE = "\u001e";
    private static final String FIELD = "\u001f";
    private static final String ITEM = "\u001d";
    /** Operators that hand on whatever columns they are given. */
    private static final Set<String> HANDS_ON = Set.of(
            "Filter",
            "SubqueryAlias",
            "EventTimeWatermark",
            "UpdateEventTimeWatermarkColumn",
            "Deduplicate",
            "DeduplicateWithinWatermark",
            "Generate",
            "CollectMetrics",
            "ResolvedHint",
            "LocalLimit",
            "GlobalLimit",
            "Sort",
            "RepartitionByExpression",
            "Repartition");

    private Plans() {}

    /**
     * Every operator of an analysed plan, from the result down to the sources: its name, whether it is streaming, whether all
     * below it are, whether it or one below it calls Python, its expressions, and two lists of texts that tell more of some kinds.
     */
    public static String tell(Dataset<Row> rows) {
        List<String> found = new ArrayList<>();
        tell(rows.queryExecution().analyzed(), found);
        return String.join(NODE, found);
    }

    private static void tell(LogicalPlan plan, List<String> found) {
        List<LogicalPlan> children = list(plan.children());
        found.add(String.join(
                FIELD,
                plan.getClass().getSimpleName(),
                plan.isStreaming() ? "1" : "",
                children.stream().allMatch(LogicalPlan::isStreaming) ? "1" : "",
                plan.containsPattern(TreePattern.PYTHON_UDF()) ? "1" : "",
                plan.expressions().toString(),
                texts(first(plan)),
                texts(second(plan))));
        children.forEach(child -> tell(child, found));
    }

    private static Collection<?> first(LogicalPlan plan) {
        if (plan instanceof Aggregate aggregate) {
            return list(aggregate.aggregateExpressions());
        }
        if (plan instanceof Deduplicate deduplicate) {
            return names(list(deduplicate.keys()));
        }
        if (plan instanceof DeduplicateWithinWatermark deduplicate) {
            return names(list(deduplicate.keys()));
        }
        if (plan instanceof Join join) {
            return List.of(join.joinType());
        }
        if (plan instanceof Generate generate) {
            return List.of(generate.generator().getClass().getSimpleName());
        }
        return plan.getClass().getSimpleName().startsWith("TransformWithState") ? names(list(plan.output())) : List.of();
    }

    private static Collection<?> second(LogicalPlan plan) {
        if (plan instanceof Aggregate aggregate) {
            return list(aggregate.groupingExpressions());
        }
        return plan instanceof Join join && join.condition().isDefined() ? List.of(join.condition().get()) : List.of();
    }

    private static String texts(Collection<?> items) {
        return String.join(ITEM, items.stream().map(Object::toString).toList());
    }

    private static List<String> names(List<Attribute> attributes) {
        return attributes.stream().map(Attribute::name).toList();
    }

    /** The same rows with these columns (their names with commas between) of the sources; null where they cannot be followed. */
    public static Dataset<Row> carry(Dataset<Row> rows, String names, boolean throughAggregates) {
        List<String> wanted = Arrays.asList(names.split(","));
        LogicalPlan plan = carried(rows.queryExecution().analyzed(), wanted, throughAggregates);
        return plan == null ? null : Dataset.ofRows(rows.sparkSession(), plan);
    }

    private static LogicalPlan carried(LogicalPlan plan, List<String> names, boolean throughAggregates) {
        if (names(list(plan.output())).containsAll(names)) {
            return plan;
        }
        if (plan instanceof Aggregate && !throughAggregates) {
            return null;
        }
        boolean known = plan instanceof Aggregate || plan instanceof Project || plan instanceof Union || plan instanceof Expand;
        if (!known && !HANDS_ON.contains(plan.getClass().getSimpleName())) {
            return null;
        }
        List<LogicalPlan> below = new ArrayList<>();
        for (LogicalPlan child : list(plan.children())) {
            LogicalPlan found = carried(child, names, throughAggregates);
            if (found == null) {
                return null;
            }
            below.add(found);
        }
        if (below.isEmpty()) {
            return null;
        }
        if (plan instanceof Aggregate aggregate) {
            return largest(aggregate, below.get(0), names);
        }
        if (plan instanceof Project project) {
            return new Project(with(project.projectList(), attributes(below.get(0), names)), below.get(0));
        }
        if (plan instanceof Expand expand) {
            List<Attribute> added = attributes(below.get(0), names);
            List<Seq<Expression>> projections = new ArrayList<>();
            list(expand.projections()).forEach(each -> projections.add(with(each, added)));
            return new Expand(seq(projections), with(expand.output(), added), below.get(0));
        }
        if (plan instanceof Union) {
            // Each branch ends with the same columns in the same order: a union goes by position.
            below.replaceAll(child -> last(child, names));
        }
        return plan.withNewChildren(seq(below));
    }

    private static LogicalPlan largest(Aggregate plan, LogicalPlan child, List<String> names) {
        List<NamedExpression> added = new ArrayList<>();
        for (Attribute each : attributes(child, names)) {
            added.add(new Alias(
                    new Max(each).toAggregateExpression(),
                    each.name(),
                    NamedExpression.newExprId(),
                    seq(List.of()),
                    Option.empty(),
                    seq(List.of())));
        }
        return new Aggregate(
                plan.groupingExpressions(), with(plan.aggregateExpressions(), added), child, plan.hint());
    }

    private static LogicalPlan last(LogicalPlan plan, List<String> names) {
        List<Attribute> output = list(plan.output());
        int rest = output.size() - names.size();
        if (names(output).subList(rest, output.size()).equals(names)) {
            return plan;
        }
        List<NamedExpression> columns = new ArrayList<>(output);
        columns.removeIf(each -> names.contains(each.name()));
        columns.addAll(attributes(plan, names));
        return new Project(seq(columns), plan);
    }

    private static List<Attribute> attributes(LogicalPlan plan, List<String> names) {
        Map<String, Attribute> found = new HashMap<>();
        list(plan.output()).forEach(each -> found.put(each.name(), each));
        return names.stream().map(found::get).toList();
    }

    private static <T> List<T> list(Seq<T> items) {
        return CollectionConverters.asJava(items);
    }

    private static <T> Seq<T> with(Seq<T> items, List<? extends T> added) {
        List<T> all = new ArrayList<>(list(items));
        all.addAll(added);
        return seq(all);
    }

    @SuppressWarnings("unchecked")
    private static <T> Seq<T> seq(List<T> items) {
        return (Seq<T>) ArraySeq.unsafeWrapArray(items.toArray());
    }
}
