package headrace;

import org.apache.spark.unsafe.types.UTF8String;

/** Times and dates between their texts and Spark's numbers: microseconds, and days, since 1970. */
final class Times {
    private static final long DAY = 86_400_000_000L;
    private static final int[] MONTHS = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    private Times() {}

    /** The microseconds of a time with a zone, such as 2026-11-18T06:00:00.5Z. */
    static Long micros(UTF8String text) {
        byte[] in = text.getBytes();
        int length = in.length;
        if (length < 20 || (in[10] != 'T' && in[10] != 't' && in[10] != ' ') || in[13] != ':' || in[16] != ':') {
            throw noTime();
        }
        long day = day(in);
        int hour = two(in, 11), minute = two(in, 14), second = two(in, 17);
        if (hour > 23 || minute > 59 || second > 59) {
            throw noTime();
        }
        int at = 19;
        long micros = 0;
        if (in[at] == '.') {
            int begin = ++at;
            while (at < length && in[at] >= '0' && in[at] <= '9') {
                if (at - begin < 6) {
                    micros = micros * 10 + (in[at] - '0');
                } else if (at - begin == 6 && in[at] >= '5') {
                    micros++;
                }
                at++;
            }
            if (at == begin) {
                throw noTime();
            }
            for (int digits = at - begin; digits < 6; digits++) {
                micros *= 10;
            }
        }
        long zone = zone(in, at);
        return day * DAY + (hour * 3600L + minute * 60L + second - zone) * 1_000_000L + micros;
    }

    private static long zone(byte[] in, int at) {
        int left = in.length - at;
        if (left == 1 && (in[at] == 'Z' || in[at] == 'z')) {
            return 0;
        }
        if ((left == 6 && in[at + 3] == ':' || left == 5) && (in[at] == '+' || in[at] == '-')) {
            int hours = two(in, at + 1), minutes = two(in, in.length - 2);
            if (hours < 24 && minutes < 60) {
                return (in[at] == '-' ? -1 : 1) * (hours * 3600L + minutes * 60L);
            }
        }
        throw noTime();
    }

    /** The days of a date such as 2026-11-18. */
    static Integer days(UTF8String text) {
        byte[] in = text.getBytes();
        try {
            if (in.length == 10) {
                return (int) day(in);
            }
        } catch (Decoder.Bad noDate) {
            // said below
        }
        throw new Decoder.Bad("is not a date");
    }

    private static long day(byte[] in) {
        int year = two(in, 0) * 100 + two(in, 2), month = two(in, 5), day = two(in, 8);
        boolean leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        if (in[4] != '-' || in[7] != '-' || year < 1 || month < 1 || month > 12 || day < 1 || day > MONTHS[month - 1]) {
            throw noTime();
        }
        if (month == 2 && day == 29 && !leap) {
            throw noTime();
        }
        // Years that begin in March have their leap day at the end.
        long y = month <= 2 ? year - 1 : year;
        long era = Math.floorDiv(y, 400L);
        long ofEra = y - era * 400;
        long ofYear = (153L * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
        return era * 146_097 + ofEra * 365 + ofEra / 4 - ofEra / 100 + ofYear - 719_468;
    }

    private static int two(byte[] in, int at) {
        int high = in[at] - '0', low = in[at + 1] - '0';
        if (high < 0 || high > 9 || low < 0 || low > 9) {
            throw noTime();
        }
        return high * 10 + low;
    }

    private static Decoder.Bad noTime() {
        return new Decoder.Bad("is not a time with a zone");
    }

    /** Writes microseconds as a time in UTC with six digits, 27 bytes from `at` on; returns where it ends. */
    static int write(long micros, byte[] out, int at) {
        long day = Math.floorDiv(micros, DAY);
        long rest = Math.floorMod(micros, DAY);
        at = writeDate(day, out, at);
        out[at++] = 'T';
        long seconds = rest / 1_000_000;
        at = put(seconds / 3600, 2, out, at);
        out[at++] = ':';
        at = put(seconds / 60 % 60, 2, out, at);
        out[at++] = ':';
        at = put(seconds % 60, 2, out, at);
        out[at++] = '.';
        at = put(rest % 1_000_000, 6, out, at);
        out[at++] = 'Z';
        return at;
    }

    /** Writes days as a date, 10 bytes from `at` on; returns where it ends. */
    static int writeDate(long days, byte[] out, int at) {
        long z = days + 719_468;
        long era = Math.floorDiv(z, 146_097L);
        long ofEra = z - era * 146_097;
        long yearOfEra = (ofEra - ofEra / 1460 + ofEra / 36_524 - ofEra / 146_096) / 365;
        long ofYear = ofEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100);
        long shifted = (5 * ofYear + 2) / 153;
        long day = ofYear - (153 * shifted + 2) / 5 + 1;
        long month = shifted < 10 ? shifted + 3 : shifted - 9;
        long year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0);
        if (year < 0 || year > 9999) {
            throw new IllegalArgumentException("HEADRACE column has a time in the year " + year);
        }
        at = put(year, 4, out, at);
        out[at++] = '-';
        at = put(month, 2, out, at);
        out[at++] = '-';
        return put(day, 2, out, at);
    }

    private static int put(long number, int digits, byte[] out, int at) {
        for (int i = at + digits - 1; i >= at; i--) {
            out[i] = (byte) ('0' + number % 10);
            number /= 10;
        }
        return at + digits;
    }
}
