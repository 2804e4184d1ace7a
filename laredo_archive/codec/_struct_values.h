/* Converts values of google.protobuf.Structs to JSON. Bytes are read within a Span, and written to
   a Text, which grows. Part of _struct_scan.c, which includes this file. */

#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 9007199254740992.0 /* 2^53 */
#define DEEPEST 16
#define MOST_TEXT 0x7FFFFFFF     /* limit of an Arrow string array's 32-bit offsets */
#define VERBATIM "\x0a\x04json\x12"
#define VERBATIM_SIZE 7

enum { OK = 0, ERROR = -1, REFUSED = -2 };
enum { NULL_VALUE = 0x08, NUMBER = 0x11, STRING = 0x1A, BOOL = 0x20, STRUCT = 0x2A, LIST = 0x32 };
enum { ENTRY = 0x0A, ACTION = 0x0A, KEY = 0x12, OLD = 0x1A, NEW = 0x22 };

typedef struct {
    const unsigned char *at, *stop;
} Span;

typedef struct {
    char *bytes;
    Py_ssize_t size, room;
} Text;

/* ------------------------------------------------------------------ reading */

static int
read_varint(Span *from, Py_ssize_t *number)
{
    unsigned long long value = 0;
    for (int shift = 0; shift < 63 && from->at < from->stop; shift += 7) {
        unsigned char byte = *from->at++;
        value |= (unsigned long long)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (Py_ssize_t)value;
            return OK;
        }
    }
    return REFUSED;
}

/* The bytes after a length; they must be within `from`. */
static int
read_sized(Span *from, Span *part)
{
    Py_ssize_t size;
    if (read_varint(from, &size) != OK || size > from->stop - from->at)
        return REFUSED;
    part->at = from->at;
    part->stop = from->at += size;
    return OK;
}

static int
read_part(Span *from, unsigned char tag, Span *part)
{
    if (from->at >= from->stop || *from->at != tag)
        return REFUSED;
    from->at++;
    return read_sized(from, part);
}

/* ------------------------------------------------------------------ writing */

static int
grow(Text *text, Py_ssize_t more)
{
    if (text->size + more > MOST_TEXT)
        return REFUSED;
    Py_ssize_t room = text->room ? text->room : 256;
    while (room < text->size + more)
        room *= 2;
    if (room > MOST_TEXT)
        room = MOST_TEXT;
    char *bytes = PyMem_Realloc(text->bytes, (size_t)room);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return ERROR;
    }
    text->bytes = bytes;
    text->room = room;
    return OK;
}

static inline int
make_room(Text *text, Py_ssize_t more)
{
    return text->room - text->size >= more ? OK : grow(text, more);
}

static inline int
put(Text *text, const void *bytes, Py_ssize_t size)
{
    int made = make_room(text, size);
    if (made == OK && size) {
        memcpy(text->bytes + text->size, bytes, (size_t)size);
        text->size += size;
    }
    return made;
}

static int
put_integer(Text *text, long long number)
{
    char digits[24], *at = digits + sizeof(digits);
    unsigned long long left = number < 0 ? -(unsigned long long)number : (unsigned long long)number;
    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *--at = '-';
    return put(text, at, digits + sizeof(digits) - at);
}

/* Writes d.ddde+XX, made from the shortest digits in any notation. */
static int
put_exponent(Text *text, const char *shortest)
{
    char digits[64], made[80], *end = made;
    int count = 0, point = 0, seen_point = 0, power = 0, leading = 1;
    if (*shortest == '-')
        *end++ = *shortest++;
    for (; *shortest && *shortest != 'e'; shortest++) {
        if (*shortest == '.') {
            seen_point = 1;
            continue;
        }
        if (leading && *shortest == '0') {
            point -= seen_point;
            continue;
        }
        leading = 0;
        if (count == (int)sizeof(digits))
            return REFUSED;
        digits[count++] = *shortest;
        point += !seen_point;
    }
    if (*shortest == 'e')
        power = atoi(shortest + 1);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    if (count == 0)
        return REFUSED;
    *end++ = digits[0];
    if (count > 1) {
        *end++ = '.';
        memcpy(end, digits + 1, (size_t)(count - 1));
        end += count - 1;
    }
    power += point - 1;
    *end++ = 'e';
    *end++ = power < 0 ? '-' : '+';
    power = abs(power);
    if (power < 10)
        *end++ = '0';
    int made_so_far = put(text, made, end - made);
    return made_so_far == OK ? put_integer(text, power) : made_so_far;
}

/* As struct_rows.number_text(); `type` is that of the column. */
static int
put_number(Text *text, double number, char type)
{
    if (!isfinite(number))
        return REFUSED;
    int is_float = type == 'd' || type == 'f';
    if (!is_float && number == floor(number) && fabs(number) <= EXACT)
        return put_integer(text, (long long)number);
    char *shortest = PyOS_double_to_string(number, 'r', 0, 0, NULL);
    if (shortest == NULL)
        return ERROR;
    double size = fabs(number);
    int is_plain = number == 0 || (size >= 1e-4 && size < (type == 'f' ? 1e6 : 1e15));
    int made = is_plain ? put(text, shortest, (Py_ssize_t)strlen(shortest))
                        : put_exponent(text, shortest);
    PyMem_Free(shortest);
    return made;
}

static const unsigned char *
skip_digits(const unsigned char *at, const unsigned char *stop)
{
    while (at < stop && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* https://www.rfc-editor.org/rfc/rfc8259#section-6 */
static int
is_number(Span raw)
{
    const unsigned char *at = raw.at, *stop = raw.stop, *begin;
    if (at < stop && *at == '-')
        at++;
    begin = at;
    at = skip_digits(at, stop);
    if (at == begin || (*begin == '0' && at > begin + 1))
        return 0;
    if (at < stop && *at == '.') {
        begin = ++at;
        if ((at = skip_digits(at, stop)) == begin)
            return 0;
    }
    if (at < stop && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < stop && (*at == '-' || *at == '+'))
            at++;
        begin = at;
        if ((at = skip_digits(at, stop)) == begin)
            return 0;
    }
    return at == stop;
}

static int
put_escape(Text *text, unsigned char byte)
{
    static const char names[] = "btn\0fr", hex[] = "0123456789abcdef";
    char made[6] = {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
    if (byte == '"' || byte == '\\')
        made[1] = (char)byte;
    else if (byte >= 8 && byte <= 13 && byte != 11)
        made[1] = names[byte - 8];
    return put(text, made, made[1] == 'u' ? 6 : 2);
}

static int
put_escaped(Text *text, Span raw)
{
    PyObject *decoded = PyUnicode_DecodeUTF8((const char *)raw.at, raw.stop - raw.at, NULL);
    if (decoded == NULL) {
        PyErr_Clear();
        return REFUSED;
    }
    Py_DECREF(decoded);
    int made = put(text, "\"", 1);
    for (; made == OK && raw.at < raw.stop; raw.at++) {
        unsigned char byte = *raw.at;
        if (byte < 0x20 || byte == '"' || byte == '\\')
            made = put_escape(text, byte);
        else
            made = put(text, raw.at, 1);
    }
    return made == OK ? put(text, "\"", 1) : made;
}

static int
put_string(Text *text, Span raw, char type)
{
    Py_ssize_t size = raw.stop - raw.at;
    if (type == 'j' || (type != 't' && is_number(raw)))
        return put(text, raw.at, size);
    int made = make_room(text, size + 2);
    if (made != OK)
        return made;
    char *to = text->bytes + text->size;
    *to++ = '"';
    unsigned char escaped = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned char byte = raw.at[i];
        escaped |= (byte < 0x20) | (byte == '"') | (byte == '\\');
        to[i] = (char)byte;
    }
    if (escaped)
        return put_escaped(text, raw);
    to[size] = '"';
    text->size += size + 2;
    return OK;
}

/* The text of a value in a struct with the one member "json". */
static int
put_verbatim(Text *text, Span fields, char type)
{
    Span entry, value, raw;
    if (type == 'j' || read_part(&fields, ENTRY, &entry) != OK || fields.at != fields.stop)
        return REFUSED;
    if (entry.stop - entry.at < VERBATIM_SIZE || memcmp(entry.at, VERBATIM, VERBATIM_SIZE) != 0)
        return REFUSED;
    entry.at += VERBATIM_SIZE;
    if (read_sized(&entry, &value) != OK || entry.at != entry.stop)
        return REFUSED;
    if (read_part(&value, STRING, &raw) != OK || value.at != value.stop)
        return REFUSED;
    return put(text, raw.at, raw.stop - raw.at);
}

/* The JSON of a Value of this type; `element` is the type of a list's elements. */
static int
put_value(Text *text, Span value, char type, char element, int depth)
{
    if (value.at == value.stop)
        return put(text, "null", 4);
    Py_ssize_t size = value.stop - value.at;
    unsigned char kind = *value.at;
    switch (kind) {
    case NULL_VALUE:
        return size == 2 && value.at[1] == 0 ? put(text, "null", 4) : REFUSED;
    case BOOL:
        if (size != 2 || value.at[1] > 1)
            return REFUSED;
        return value.at[1] ? put(text, "true", 4) : put(text, "false", 5);
    case NUMBER: {
        if (size != 9)
            return REFUSED;
        unsigned long long bits = 0;
        double number;
        for (int i = 8; i > 0; i--)
            bits = bits << 8 | value.at[i];
        memcpy(&number, &bits, sizeof(number));
        return put_number(text, number, type);
    }
    }
    Span part, item;
    if (read_part(&value, kind, &part) != OK || value.at != value.stop)
        return REFUSED;
    if (kind == STRING)
        return put_string(text, part, type);
    if (kind == STRUCT)
        return put_verbatim(text, part, type);
    if (kind != LIST || type == 'j' || depth >= DEEPEST)
        return REFUSED;
    int made = put(text, "[", 1);
    for (int first = 1; made == OK && part.at < part.stop; first = 0) {
        if ((made = read_part(&part, ENTRY, &item)) == OK && !first)
            made = put(text, ",", 1);
        if (made == OK)
            made = put_value(text, item, element, element, depth + 1);
    }
    return made == OK ? put(text, "]", 1) : made;
}
