package headrace;

import java.nio.charset.StandardCharsets;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.Base64;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/** Writes a row's columns as the JSON of a record: times in UTC, decimals as texts so that no reader rounds them. */
final class Encoder {
    private final StructField[] columns;
    private final byte[][] names;
    private final String nulls;
    private byte[] out = new byte[512];
    private int at;

    /**
     * For the first of a row's columns. What becomes of a null in each of them is said by a letter: w, it is written; o, the
     * field is left out, which has a default; r, it is refused.
     */
    Encoder(StructField[] columns, String nulls) {
        this.columns = columns;
        this.nulls = nulls;
        names = new byte[columns.length][];
        for (int i = 0; i < columns.length; i++) {
            names[i] = name(columns[i].name());
        }
    }

    private static byte[] name(String name) {
        Encoder quoted = new Encoder(new StructField[0], "");
        quoted.text(UTF8String.fromString(name));
        quoted.put(':');
        return Arrays.copyOf(quoted.out, quoted.at);
    }

    byte[] encode(SpecializedGetters row) {
        at = 0;
        put('{');
        for (int i = 0; i < columns.length; i++) {
            boolean isNull = row.isNullAt(i);
            if (isNull && nulls.charAt(i) == 'o') {
                continue;
            }
            if (at > 1) {
                put(',');
            }
            raw(names[i]);
            if (isNull) {
                if (nulls.charAt(i) == 'r') {
                    throw refused(i, "is null");
                }
                ascii("null");
            } else {
                try {
                    value(row, i, columns[i].dataType());
                } catch (ArithmeticException error) {
                    throw refused(i, error.getMessage());
                }
            }
        }
        put('}');
        return Arrays.copyOf(out, at);
    }

    private IllegalArgumentException refused(int column, String why) {
        return new IllegalArgumentException("HEADRACE column '" + columns[column].name() + "' " + why);
    }

    private void value(SpecializedGetters row, int i, DataType type) {
        if (type instanceof StringType) {
            text(row.getUTF8String(i));
        } else if (type == DataTypes.DoubleType) {
            number(row.getDouble(i));
        } else if (type == DataTypes.LongType) {
            whole(row.getLong(i));
        } else if (type == DataTypes.IntegerType) {
            whole(row.getInt(i));
        } else if (type == DataTypes.TimestampType || type == DataTypes.TimestampNTZType) {
            room(32);
            out[at++] = '"';
            at = Times.write(row.getLong(i), out, at);
            out[at++] = '"';
        } else if (type == DataTypes.DateType) {
            room(16);
            out[at++] = '"';
            at = Times.writeDate(row.getInt(i), out, at);
            out[at++] = '"';
        } else if (type == DataTypes.BooleanType) {
            ascii(row.getBoolean(i) ? "true" : "false");
        } else if (type == DataTypes.FloatType) {
            float found = row.getFloat(i);
            if (!Float.isFinite(found)) {
                throw new ArithmeticException("is not a finite number");
            }
            ascii(Float.toString(found));
        } else if (type == DataTypes.ShortType) {
            whole(row.getShort(i));
        } else if (type == DataTypes.ByteType) {
            whole(row.getByte(i));
        } else if (type instanceof DecimalType decimal) {
            decimal(row, i, decimal);
        } else if (type == DataTypes.BinaryType) {
            put('"');
            raw(Base64.getEncoder().encode(row.getBinary(i)));
            put('"');
        } else if (type instanceof ArrayType array) {
            array(row.getArray(i), array.elementType());
        } else if (type instanceof MapType map) {
            map(row.getMap(i), map);
        } else if (type instanceof StructType struct) {
            struct(row.getStruct(i, struct.length()), struct);
        } else if (type instanceof VariantType) {
            VariantVal found = row.getVariant(i);
            raw(new Variant(found.getValue(), found.getMetadata())
                    .toJson(ZoneOffset.UTC)
                    .getBytes(StandardCharsets.UTF_8));
        } else {
            throw new IllegalArgumentException("HEADRACE column of type " + type.simpleString() + " has no form in JSON");
        }
    }

    private void nullable(SpecializedGetters row, int i, DataType type) {
        if (row.isNullAt(i)) {
            ascii("null");
        } else {
            value(row, i, type);
        }
    }

    private void array(ArrayData items, DataType type) {
        put('[');
        for (int i = 0; i < items.numElements(); i++) {
            if (i > 0) {
                put(',');
            }
            nullable(items, i, type);
        }
        put(']');
    }

    private void map(MapData entries, MapType type) {
        ArrayData keys = entries.keyArray(), values = entries.valueArray();
        put('{');
        for (int i = 0; i < keys.numElements(); i++) {
            if (i > 0) {
                put(',');
            }
            if (type.keyType() instanceof StringType) {
                text(keys.getUTF8String(i));
            } else {
                text(UTF8String.fromString(String.valueOf(keys.get(i, type.keyType()))));
            }
            put(':');
            nullable(values, i, type.valueType());
        }
        put('}');
    }

    private void struct(SpecializedGetters row, StructType type) {
        put('{');
        for (int i = 0; i < type.length(); i++) {
            if (i > 0) {
                put(',');
            }
            text(UTF8String.fromString(type.fields()[i].name()));
            put(':');
            nullable(row, i, type.fields()[i].dataType());
        }
        put('}');
    }

    private void decimal(SpecializedGetters row, int i, DecimalType type) {
        java.math.BigDecimal found = row.getDecimal(i, type.precision(), type.scale()).toJavaBigDecimal();
        // The zeros at the end of the record's own type say nothing; of another type they may.
        if (type.precision() == 38 && type.scale() == 18) {
            found = found.signum() == 0 ? java.math.BigDecimal.ZERO : found.stripTrailingZeros();
        }
        put('"');
        ascii(found.toPlainString());
        put('"');
    }

    private void number(double found) {
        if (!Double.isFinite(found)) {
            throw new ArithmeticException("is not a finite number");
        }
        ascii(Double.toString(found));
    }

    private void whole(long found) {
        room(20);
        if (found < 0) {
            if (found == Long.MIN_VALUE) {
                ascii("-9223372036854775808");
                return;
            }
            out[at++] = '-';
            found = -found;
        }
        int digits = 1;
        for (long rest = found; rest >= 10; rest /= 10) {
            digits++;
        }
        for (int place = at + digits - 1; place >= at; place--) {
            out[place] = (byte) ('0' + found % 10);
            found /= 10;
        }
        at += digits;
    }

    private void text(UTF8String found) {
        byte[] bytes = found.getBytes();
        room(bytes.length * 6 + 2);
        out[at++] = '"';
        boolean plain = true;
        for (int i = 0; i < bytes.length; i++) {
            byte each = bytes[i];
            if (each == '"' || each == '\\') {
                out[at++] = '\\';
                out[at++] = each;
            } else if (each >= 0x20) {
                out[at++] = each;
            } else if (each < 0) {
                if (plain && !found.isValid()) {
                    bytes = found.makeValid().getBytes();
                    room(bytes.length * 6 + 2);
                    each = bytes[i];
                }
                plain = false;
                out[at++] = each;
            } else {
                ascii(switch (each) {
                    case '\n' -> "\\n";
                    case '\r' -> "\\r";
                    case '\t' -> "\\t";
                    default -> String.format("\\u%04x", (int) each);
                });
            }
        }
        out[at++] = '"';
    }

    private void raw(byte[] bytes) {
        room(bytes.length);
        System.arraycopy(bytes, 0, out, at, bytes.length);
        at += bytes.length;
    }

    @SuppressWarnings("deprecation") // each character is one byte
    private void ascii(String text) {
        room(text.length());
        text.getBytes(0, text.length(), out, at);
        at += text.length();
    }

    private void put(char each) {
        room(1);
        out[at++] = (byte) each;
    }

    private void room(int more) {
        if (out.length - at < more) {
            out = Arrays.copyOf(out, Math.max(out.length * 2, at + more));
        }
    }
}
