package headrace;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * Reads the JSON of a record straight into the values of Spark's columns, and says why it is no such record.
 *
 * <p>One pass over the bytes, nothing is made that is not kept: a text without escapes points into the record's own bytes.
 * What is accepted is what msgspec accepts in Python, except for whole numbers beyond 64 bits. Not for use by two threads.
 */
final class Decoder {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Object MISSING = new Object();
    private static final int DEEPEST = 200;
    private static final double[] TENS = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22
    };

    /** Why bytes are no record: what is said of which field. */
    static final class Bad extends RuntimeException {
        private final String said;
        private String path = "";

        Bad(String said) {
            super(said, null, false, false);
            this.said = said;
        }

        Bad inside(String name) {
            path = path.isEmpty() ? name : path.startsWith("[") ? name + path : name + "." + path;
            return this;
        }

        String problem(String title) {
            return title + ": " + (path.isEmpty() ? said : "field '" + path + "' " + said) + ".";
        }
    }

    private enum Kind { STRING, LONG, DOUBLE, BOOLEAN, TIMESTAMP, DATE, DECIMAL, BINARY, ARRAY, MAP, STRUCT, VARIANT }

    /** What is expected at one place: a kind, and what is inside of it. */
    private static final class Node {
        final Kind kind;
        final boolean nullable;
        Node items;
        String[] names = {};
        byte[][] keys = {};
        Node[] fields = {};
        boolean[] required = {};
        Object[] defaults = {};
        List<Object> choices;
        String choicesSaid = "";

        Node(JsonNode spec) {
            kind = Kind.valueOf(spec.get("kind").asText().toUpperCase(java.util.Locale.ROOT));
            nullable = spec.path("nullable").asBoolean();
            if (spec.has("items")) {
                items = new Node(spec.get("items"));
            }
            if (spec.has("enum")) {
                choices = new ArrayList<>();
                List<String> said = new ArrayList<>();
                for (JsonNode each : spec.get("enum")) {
                    choices.add(kind == Kind.LONG ? each.asLong() : (Object) UTF8String.fromString(each.asText()));
                    said.add(each.asText());
                }
                choicesSaid = String.join(", ", said);
            }
            if (spec.has("fields")) {
                int count = spec.get("fields").size();
                names = new String[count];
                keys = new byte[count][];
                fields = new Node[count];
                required = new boolean[count];
                defaults = new Object[count];
                for (int i = 0; i < count; i++) {
                    JsonNode field = spec.get("fields").get(i);
                    names[i] = field.get("name").asText();
                    keys[i] = names[i].getBytes(StandardCharsets.UTF_8);
                    fields[i] = new Node(field);
                    required[i] = field.path("required").asBoolean();
                    defaults[i] = field.has("default") ? read(fields[i], field.get("default").asText()) : null;
                }
            }
        }

        private static Object read(Node node, String json) {
            byte[] text = json.getBytes(StandardCharsets.UTF_8);
            Decoder decoder = new Decoder(node, "");
            decoder.begin(text);
            return decoder.value(node, 0);
        }
    }

    private final Node root;
    private final String title;
    private byte[] in;
    private int at;
    private int end;
    private boolean isValidText;

    private Decoder(Node root, String title) {
        this.root = root;
        this.title = title;
    }

    static Decoder of(String spec) {
        try {
            JsonNode parsed = JSON.readTree(spec);
            return new Decoder(new Node(parsed), parsed.path("title").asText("the record"));
        } catch (java.io.IOException error) {
            throw new IllegalArgumentException(error);
        }
    }

    private void begin(byte[] bytes) {
        in = bytes;
        at = 0;
        end = bytes.length;
        isValidText = false;
    }

    /** Fills the first places of `into` with the record's fields; null if it is one, otherwise why it is not. */
    String decode(byte[] value, Object[] into) {
        begin(value);
        try {
            space();
            if (at == end || in[at] != '{') {
                throw new Bad(isText(0, end) ? "the value is not a JSON object" : "the value is not valid UTF-8");
            }
            fields(root, into, 0);
            space();
            if (at != end) {
                throw notJson();
            }
            return null;
        } catch (Bad bad) {
            return (isJson() ? bad : notJson()).problem(title);
        } catch (ArrayIndexOutOfBoundsException cut) {
            return notJson().problem(title);
        }
    }

    /** Whether all of it is JSON: of what is not, nothing is said of a field. */
    private boolean isJson() {
        try {
            at = 0;
            space();
            if (at < end && in[at] != '{') {
                return true; // which is said already
            }
            skip(0);
            space();
            return at == end;
        } catch (Bad | ArrayIndexOutOfBoundsException broken) {
            return false;
        }
    }

    private Bad notJson() {
        return new Bad(isText(0, end) ? "the value is not JSON" : "the value is not valid UTF-8");
    }

    private static Bad misfit() {
        return new Bad("does not fit its type");
    }

    private void fields(Node node, Object[] into, int depth) {
        int count = node.fields.length;
        Arrays.fill(into, 0, count, MISSING);
        at++;
        space();
        if (in[at] == '}') {
            at++;
        } else {
            for (int expected = 0; ; expected++) {
                int field = name(node, expected);
                space();
                if (in[at++] != ':') {
                    throw notJson();
                }
                space();
                if (field < 0) {
                    skip(depth + 1);
                } else {
                    try {
                        into[field] = value(node.fields[field], depth + 1);
                    } catch (Bad bad) {
                        throw bad.said.startsWith("the value") ? bad : bad.inside(node.names[field]);
                    }
                    expected = field;
                }
                space();
                byte next = in[at++];
                if (next == '}') {
                    break;
                }
                if (next != ',') {
                    throw notJson();
                }
                space();
            }
        }
        for (int i = 0; i < count; i++) {
            if (into[i] == MISSING) {
                if (node.required[i]) {
                    throw new Bad("is missing").inside(node.names[i]);
                }
                into[i] = node.defaults[i];
            }
        }
    }

    /** The number of the field whose name stands here, most often the expected one; -1 if it is none of them. */
    private int name(Node node, int expected) {
        if (in[at] != '"') {
            throw notJson();
        }
        int begin = ++at;
        if (expected < node.keys.length) {
            byte[] key = node.keys[expected];
            int stop = begin + key.length;
            if (stop < end && in[stop] == '"' && Arrays.equals(in, begin, stop, key, 0, key.length)) {
                at = stop + 1;
                return expected;
            }
        }
        at = begin - 1;
        UTF8String found = text();
        byte[] name = found.getBytes();
        for (int i = 0; i < node.keys.length; i++) {
            if (Arrays.equals(node.keys[i], name)) {
                return i;
            }
        }
        return -1;
    }

    private Object value(Node node, int depth) {
        byte first = in[at];
        if (first == 'n') {
            word("null");
            if (!node.nullable && node.kind != Kind.VARIANT) {
                throw new Bad("is missing");
            }
            if (node.kind != Kind.VARIANT || node.nullable) {
                return null;
            }
            at -= 4;
        }
        if (depth > DEEPEST) {
            throw new Bad("is nested too deeply");
        }
        switch (node.kind) {
            case STRING:
                return chosen(node, quoted(first, "is not a text"));
            case LONG:
                return chosen(node, whole());
            case DOUBLE:
                return number();
            case BOOLEAN:
                if (first == 't') {
                    word("true");
                    return true;
                }
                if (first == 'f') {
                    word("false");
                    return false;
                }
                throw mistyped();
            case TIMESTAMP:
                return Times.micros(quoted(first, "is not a time with a zone"));
            case DATE:
                return Times.days(quoted(first, "is not a date"));
            case DECIMAL:
                return decimal(first);
            case BINARY:
                return binary(quoted(first, "is not a text").getBytes());
            case ARRAY:
                return array(node, depth);
            case MAP:
                return map(node, depth);
            case STRUCT:
                if (first != '{') {
                    throw mistyped();
                }
                Object[] values = new Object[node.fields.length];
                fields(node, values, depth);
                return new GenericInternalRow(values);
            default:
                return variant(depth);
        }
    }

    /** Something else than what is expected stands here, if it is JSON at all. */
    private Bad mistyped() {
        skip(0);
        return misfit();
    }

    private UTF8String quoted(byte first, String said) {
        if (first != '"') {
            skip(0);
            throw new Bad(said);
        }
        return text();
    }

    private static byte[] binary(byte[] text) {
        try {
            if (text.length % 4 == 0) {
                return Base64.getDecoder().decode(text);
            }
        } catch (IllegalArgumentException error) {
            // said below
        }
        throw new Bad("is not base64");
    }

    private static Object chosen(Node node, Object value) {
        if (node.choices != null && !node.choices.contains(value)) {
            throw new Bad("is none of " + node.choicesSaid);
        }
        return value;
    }

    private Object array(Node node, int depth) {
        if (in[at] != '[') {
            throw mistyped();
        }
        List<Object> found = new ArrayList<>();
        at++;
        space();
        if (in[at] == ']') {
            at++;
            return new GenericArrayData(found.toArray());
        }
        while (true) {
            if (in[at] == 'n' && !node.items.nullable && node.items.kind != Kind.VARIANT) {
                throw new Bad("holds a null");
            }
            try {
                found.add(value(node.items, depth + 1));
            } catch (Bad bad) {
                throw bad.said.startsWith("the value") ? bad : bad.inside("[]");
            }
            space();
            byte next = in[at++];
            if (next == ']') {
                return new GenericArrayData(found.toArray());
            }
            if (next != ',') {
                throw notJson();
            }
            space();
        }
    }

    private Object map(Node node, int depth) {
        if (in[at] != '{') {
            throw mistyped();
        }
        Map<UTF8String, Object> found = new LinkedHashMap<>();
        at++;
        space();
        if (in[at] == '}') {
            at++;
        } else {
            while (true) {
                UTF8String key = text();
                space();
                if (in[at++] != ':') {
                    throw notJson();
                }
                space();
                if (in[at] == 'n' && !node.items.nullable && node.items.kind != Kind.VARIANT) {
                    throw new Bad("holds a null");
                }
                found.put(key, value(node.items, depth + 1));
                space();
                byte next = in[at++];
                if (next == '}') {
                    break;
                }
                if (next != ',') {
                    throw notJson();
                }
                space();
            }
        }
        return new ArrayBasedMapData(
                new GenericArrayData(found.keySet().toArray()), new GenericArrayData(found.values().toArray()));
    }

    private Object variant(int depth) {
        int begin = at;
        skip(depth);
        if (!isText(begin, at)) {
            throw new Bad("the value is not valid UTF-8");
        }
        try {
            Variant made = VariantBuilder.parseJson(new String(in, begin, at - begin, StandardCharsets.UTF_8), true);
            return new VariantVal(made.getValue(), made.getMetadata());
        } catch (java.io.IOException | RuntimeException error) {
            throw misfit();
        }
    }

    private Object decimal(byte first) {
        String digits;
        if (first == '"') {
            digits = text().toString();
        } else {
            int begin = at;
            skip(0);
            digits = new String(in, begin, at - begin, StandardCharsets.US_ASCII);
        }
        try {
            if (digits.length() > 100) {
                throw new Bad("is not a decimal number");
            }
            BigDecimal found = new BigDecimal(digits);
            if (Math.abs((long) found.scale()) > 100) {
                throw new Bad("is not a decimal number");
            }
            found = found.setScale(18, RoundingMode.HALF_UP);
            if (found.precision() > 38) {
                throw new Bad("is not a decimal number");
            }
            return Decimal.apply(new scala.math.BigDecimal(found, scala.math.BigDecimal.defaultMathContext()), 38, 18);
        } catch (NumberFormatException error) {
            throw new Bad("is not a decimal number");
        }
    }

    private Long whole() {
        int begin = at;
        boolean negative = in[at] == '-';
        if (negative) {
            at++;
        }
        int first = at;
        long found = 0;
        while (at < end && in[at] >= '0' && in[at] <= '9') {
            found = found * 10 + (in[at++] - '0');
        }
        int digits = at - first;
        byte after = at < end ? in[at] : 0;
        boolean plain = digits > 0 && (digits == 1 || in[first] != '0') && after != '.' && after != 'e' && after != 'E';
        if (plain && digits <= 18) {
            return negative ? -found : found;
        }
        at = begin;
        if (!plain) {
            throw mistyped();
        }
        skip(0);
        try {
            return Long.parseLong(new String(in, begin, at - begin, StandardCharsets.US_ASCII));
        } catch (NumberFormatException error) {
            throw misfit();
        }
    }

    private Double number() {
        int begin = at;
        byte first = in[at];
        if (first != '-' && (first < '0' || first > '9')) {
            throw mistyped();
        }
        if (first == '-') {
            at++;
        }
        int digitsBegin = at;
        long mantissa = 0;
        while (at < end && in[at] >= '0' && in[at] <= '9') {
            mantissa = mantissa * 10 + (in[at++] - '0');
        }
        int digits = at - digitsBegin;
        if (digits == 0 || (digits > 1 && in[digitsBegin] == '0')) {
            throw notJson();
        }
        int exponent = 0;
        if (at < end && in[at] == '.') {
            int point = ++at;
            while (at < end && in[at] >= '0' && in[at] <= '9') {
                mantissa = mantissa * 10 + (in[at++] - '0');
            }
            exponent = point - at;
            if (exponent == 0) {
                throw notJson();
            }
            digits -= exponent;
        }
        boolean scientific = at < end && (in[at] == 'e' || in[at] == 'E');
        if (scientific) {
            at++;
            if (in[at] == '+' || in[at] == '-') {
                at++;
            }
            int from = at;
            while (at < end && in[at] >= '0' && in[at] <= '9') {
                at++;
            }
            if (at == from) {
                throw notJson();
            }
        }
        // Both are exact as doubles, and so the quotient is the nearest one to what is written.
        if (!scientific && digits <= 18 && mantissa <= 1L << 53 && exponent >= -22) {
            double found = mantissa / TENS[-exponent];
            return first == '-' ? -found : found;
        }
        double found = Double.parseDouble(new String(in, begin, at - begin, StandardCharsets.US_ASCII));
        if (Double.isInfinite(found)) {
            throw new Bad("is too large");
        }
        return found;
    }

    private void word(String expected) {
        for (int i = 0; i < expected.length(); i++) {
            if (in[at++] != expected.charAt(i)) {
                throw notJson();
            }
        }
    }

    private void space() {
        while (at < end && (in[at] == ' ' || in[at] == '\n' || in[at] == '\r' || in[at] == '\t')) {
            at++;
        }
    }

    private boolean isText(int from, int to) {
        return UTF8String.fromBytes(in, from, to - from).isValid();
    }

    /** The text that begins with the quotation mark here. */
    private UTF8String text() {
        if (in[at] != '"') {
            throw notJson();
        }
        int begin = ++at;
        boolean plain = true;
        byte each;
        while ((each = in[at]) != '"') {
            if (each == '\\') {
                return unescaped(begin);
            }
            if (each < 0x20) {
                if (each >= 0) {
                    throw notJson();
                }
                plain = false;
            }
            at++;
        }
        at++;
        if (!plain) {
            checkText();
        }
        return UTF8String.fromBytes(in, begin, at - 1 - begin);
    }

    private void checkText() {
        if (!isValidText) {
            if (!isText(0, end)) {
                throw new Bad("the value is not valid UTF-8");
            }
            isValidText = true;
        }
    }

    private UTF8String unescaped(int begin) {
        checkText();
        int stop = at;
        while (in[stop] != '"') {
            stop += in[stop] == '\\' ? 2 : 1;
        }
        byte[] made = new byte[stop - begin];
        int length = at - begin;
        System.arraycopy(in, begin, made, 0, length);
        while (at < stop) {
            byte each = in[at++];
            if (each >= 0 && each < 0x20) {
                throw notJson();
            }
            if (each != '\\') {
                made[length++] = each;
                continue;
            }
            byte which = in[at++];
            int code = "\"\\/bfnrt".indexOf(which) >= 0 && which > 0 ? "\"\\/\b\f\n\r\t".charAt("\"\\/bfnrt".indexOf(which)) : -1;
            if (which == 'u') {
                code = hex();
                if (code >= 0xD800 && code < 0xE000) {
                    if (code >= 0xDC00 || in[at] != '\\' || in[at + 1] != 'u') {
                        throw notJson();
                    }
                    at += 2;
                    int low = hex();
                    if (low < 0xDC00 || low >= 0xE000) {
                        throw notJson();
                    }
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                }
            }
            if (code < 0) {
                throw notJson();
            }
            if (code < 0x80) {
                made[length++] = (byte) code;
            } else {
                byte[] encoded = Character.toString(code).getBytes(StandardCharsets.UTF_8);
                System.arraycopy(encoded, 0, made, length, encoded.length);
                length += encoded.length;
            }
        }
        at = stop + 1;
        return UTF8String.fromBytes(made, 0, length);
    }

    private int hex() {
        int found = 0;
        for (int i = 0; i < 4; i++) {
            int digit = Character.digit(in[at++], 16);
            if (digit < 0) {
                throw notJson();
            }
            found = found * 16 + digit;
        }
        return found;
    }

    /** Passes over a value of any kind, which must be JSON. */
    private void skip(int depth) {
        if (depth > DEEPEST) {
            throw new Bad("the value is nested too deeply");
        }
        byte first = in[at];
        if (first == '"') {
            text();
        } else if (first == '{' || first == '[') {
            byte close = (byte) (first == '{' ? '}' : ']');
            at++;
            space();
            if (in[at] == close) {
                at++;
                return;
            }
            while (true) {
                if (first == '{') {
                    text();
                    space();
                    if (in[at++] != ':') {
                        throw notJson();
                    }
                    space();
                }
                skip(depth + 1);
                space();
                byte next = in[at++];
                if (next == close) {
                    return;
                }
                if (next != ',') {
                    throw notJson();
                }
                space();
            }
        } else if (first == 't') {
            word("true");
        } else if (first == 'f') {
            word("false");
        } else if (first == 'n') {
            word("null");
        } else if (first == '-' || (first >= '0' && first <= '9')) {
            try {
                number();
            } catch (Bad tooLarge) {
                if (tooLarge.said.startsWith("the value")) {
                    throw tooLarge;
                }
            }
        } else {
            throw notJson();
        }
    }
}
