"""The first stage: three rules judge every payment as it comes, in real time.

========= ==================================================================
rapid     another payment of the customer lies within 10 seconds of it
larger    its amount is above all that the customer has paid before
elsewhere the customer's phone was over 20 km away within a minute of it
========= ==================================================================

Records are compared by the times they carry, and what completes a pair decides: a payment, or a phone that the log
hears of later. So it does not matter which of the two streams is read faster, now or after a restart.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

RAPID_S = 10
PHONE_S, PHONE_KM = 60, 20
REMEMBERED = 16  # the latest payments and sightings of each customer


def judge(transactions: DataFrame, locations: DataFrame) -> DataFrame:
    return alerts(figures(known(transactions, locations)))


def known(transactions: DataFrame, locations: DataFrame) -> DataFrame:
    """A row for each record that comes: the record as `now`, and what is known of its customer, `now` included."""
    paid = F.struct("id", "at", "amount", "city", "latitude", "longitude").alias("paid")
    seen = F.struct("at", "latitude", "longitude").alias("seen")
    payments = transactions.where("amount > 0").select("customer", paid)
    sightings = locations.select("customer", seen)
    return (
        payments.unionByName(sightings, allowMissingColumns=True)
        .groupBy("customer")
        .agg(
            F.last(F.struct("paid", "seen")).alias("now"),
            F.max_by("paid", "paid.at", REMEMBERED).alias("payments"),
            F.max_by("paid", "paid.amount", 2).alias("largest"),
            F.max_by("seen", "seen.at", REMEMBERED).alias("sightings"),
        )
    )


def figures(known: DataFrame) -> DataFrame:
    """A row for each payment to be judged: the one that has come, or those that a phone was seen far away from."""
    new, seen, paid = F.col("now.paid"), F.col("now.seen"), F.col("paid")
    far = F.filter("payments", lambda paid: (seconds(seen, paid) <= PHONE_S) & (km(seen, paid) > PHONE_KM))
    judged = known.withColumn("paid", F.explode(F.when(new.isNull(), far).otherwise(F.array(new))))
    others = F.filter("payments", lambda other: other["id"] != paid["id"])
    larger = F.filter("largest", lambda other: other["id"] != paid["id"])
    near = F.filter("sightings", lambda seen: seconds(seen, paid) <= PHONE_S)
    return judged.withColumns(
        {
            "seconds_apart": F.array_min(F.transform(others, lambda other: seconds(other, paid))),
            "previous_maximum": F.array_max(F.transform(larger, lambda other: other["amount"])),
            "phones_km": F.transform(near, lambda seen: km(seen, paid)),
        }
    )


def alerts(figures: DataFrame) -> DataFrame:
    """A row for each rule that is broken, and that was not before."""
    paid, is_new = F.col("paid"), F.col("now.paid").isNotNull()
    away = F.size(F.filter("phones_km", lambda km: km > PHONE_KM))
    broken = {
        "rapid": is_new & (F.col("seconds_apart") <= RAPID_S),
        "larger": is_new & (paid["amount"] > F.col("previous_maximum")),
        "elsewhere": F.when(is_new, away > 0).otherwise(away == 1),  # of more, an earlier one was told
    }
    named = F.array(*(F.when(condition, rule) for rule, condition in broken.items()))
    id = F.concat("paid.id", F.lit("/"), "rule")
    return figures.withColumn("rule", F.explode(F.array_compact(named))).select(
        id.alias("_id"),
        id.alias("id"),
        "rule",
        "customer",
        F.col("paid.id").alias("transaction"),
        "paid.amount",
        "paid.city",
        "paid.at",
        F.when(is_new, F.col("seconds_apart")).alias("seconds_apart"),
        F.when(is_new, F.col("previous_maximum")).alias("previous_maximum"),
        F.array_max("phones_km").alias("phone_km"),
    )


def seconds(one: Column, other: Column) -> Column:
    """How long two things happened apart."""
    return F.abs(F.unix_micros(one["at"]) - F.unix_micros(other["at"])) / 1e6


def km(one: Column, other: Column) -> Column:
    """How far two places on the earth are apart, by the haversine formula."""
    up = F.sin(F.radians(one["latitude"] - other["latitude"]) / 2)
    along = F.sin(F.radians(one["longitude"] - other["longitude"]) / 2)
    narrow = F.cos(F.radians(one["latitude"])) * F.cos(F.radians(other["latitude"]))
    return 12742 * F.asin(F.sqrt(up * up + narrow * along * along))
