/* Rows that are google.protobuf.Structs, to JSON: docs/archive-format.md, protobuf.
   And rows that are JSON already, to columns: what stands between their members' names.

   Only rows as our own writer makes them: their members in the order of the columns. Anything
   else gives None, and struct_reader.py reads it, or says what is wrong with it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 9007199254740992.0 /* 2^53 */
#define DEEPEST 16
#define MOST_TEXT 0x7FFFFFFF     /* of an Arrow string array's 32-bit offsets */
#define FIRST_ROWS 2
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

/* What follows a length, which lies within `from`. */
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

/* d.ddde+XX from the shortest digits, however they are printed. */
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

/* As floats.text has it; `type` is that of the column. */
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

/* A struct with the one member "json" holds a value's text. */
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

/* A Value of this type; `element` is the type of what a list holds. */
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

/* ------------------------------------------------------------------ rows */

/* The Value of the next member of a Struct, whose name has to be that of the column. */
static inline int
next_value(Span *fields, PyObject *name, Span *value)
{
    Span entry;
    Py_ssize_t size = PyBytes_GET_SIZE(name);
    if (read_part(fields, ENTRY, &entry) != OK || entry.stop - entry.at < size)
        return REFUSED;
    if (memcmp(entry.at, PyBytes_AS_STRING(name), (size_t)size) != 0)
        return REFUSED;
    entry.at += size;
    return read_sized(&entry, value) == OK && entry.at == entry.stop ? OK : REFUSED;
}

static int
are_bytes(PyObject *items, Py_ssize_t count)
{
    if (!PyTuple_Check(items) || PyTuple_GET_SIZE(items) != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(items, i)))
            return 0;
    return 1;
}

static PyObject *
given_up(int made)
{
    return made == ERROR ? NULL : Py_NewRef(Py_None);
}

/* row(data, at, stop, names, prefixes, types, key_at): (line, the key's fragments). */
static PyObject *
row(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *data, *names, *prefixes, *key_at;
    Py_ssize_t at, stop, types_size;
    const char *types;
    if (!PyArg_ParseTuple(arguments, "O!nnO!Oy#O!", &PyBytes_Type, &data, &at, &stop, &PyTuple_Type,
                          &names, &prefixes, &types, &types_size, &PyTuple_Type, &key_at))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(names), keys = PyTuple_GET_SIZE(key_at);
    if (!are_bytes(names, count) || !are_bytes(prefixes, count) || types_size != 2 * count || at < 0
        || at > stop || stop > PyBytes_GET_SIZE(data))
        return PyErr_Format(PyExc_ValueError, "no row, or names, prefixes and types of other sizes");
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(data);
    Span fields = {bytes + at, bytes + stop}, value;
    Text text = {NULL, 0, 0};
    PyObject *found = PyTuple_New(keys);
    if (found == NULL)
        return NULL;
    int made = grow(&text, 2 * (stop - at) + 64);
    for (Py_ssize_t i = 0; made == OK && i < count; i++) {
        PyObject *prefix = PyTuple_GET_ITEM(prefixes, i);
        if ((made = next_value(&fields, PyTuple_GET_ITEM(names, i), &value)) != OK)
            break;
        if ((made = put(&text, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))) != OK)
            break;
        Py_ssize_t begin = text.size;
        made = put_value(&text, value, types[2 * i], types[2 * i + 1], 0);
        for (Py_ssize_t k = 0; made == OK && k < keys; k++) {
            if (PyLong_AsSsize_t(PyTuple_GET_ITEM(key_at, k)) != i)
                continue;
            PyObject *key = PyBytes_FromStringAndSize(text.bytes + begin, text.size - begin);
            if (key == NULL)
                made = ERROR;
            else if (PyTuple_GET_ITEM(found, k) == NULL)
                PyTuple_SET_ITEM(found, k, key);
            else
                Py_DECREF(key);
        }
    }
    if (made == OK && fields.at != fields.stop)
        made = REFUSED;
    for (Py_ssize_t k = 0; made == OK && k < keys; k++)
        if (PyTuple_GET_ITEM(found, k) == NULL)
            made = PyErr_Occurred() ? ERROR : REFUSED;
    if (made == OK)
        made = put(&text, "}", 1);
    PyObject *answer = NULL;
    if (made == OK)
        answer = Py_BuildValue("(y#O)", text.bytes, text.size, found);
    Py_DECREF(found);
    PyMem_Free(text.bytes);
    return made == OK ? answer : given_up(made);
}

/* ------------------------------------------------------------------ columns */

typedef struct {
    Text text;
    int *offsets;
} Fragments;

static void
free_columns(Fragments *columns, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; columns != NULL && i < count; i++) {
        PyMem_Free(columns[i].offsets);
        PyMem_Free(columns[i].text.bytes);
    }
    PyMem_Free(columns);
}

/* Empty columns; NULL with an exception if there is no memory. */
static Fragments *
new_columns(Py_ssize_t count, Py_ssize_t rows, const char *wanted)
{
    Fragments *columns = PyMem_Calloc((size_t)count + 1, sizeof(Fragments));
    for (Py_ssize_t i = 0; columns != NULL && i < count; i++) {
        if (wanted[i] && !(columns[i].offsets = PyMem_Calloc((size_t)rows + 1, sizeof(int)))) {
            free_columns(columns, count);
            columns = NULL;
        }
    }
    if (columns == NULL)
        PyErr_NoMemory();
    return columns;
}

static int
put_row(Fragments *columns, Py_ssize_t number, PyObject *message, PyObject *names,
        const char *types, const char *wanted)
{
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    Span whole = {bytes, bytes + PyBytes_GET_SIZE(message)}, fields, value;
    if (read_part(&whole, ENTRY, &fields) != OK || whole.at != whole.stop)
        return REFUSED;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (next_value(&fields, PyTuple_GET_ITEM(names, i), &value) != OK)
            return REFUSED;
        if (!wanted[i])
            continue;
        int made = put_value(&columns[i].text, value, types[2 * i], types[2 * i + 1], 0);
        if (made != OK)
            return made;
        columns[i].offsets[number + 1] = (int)columns[i].text.size;
    }
    return fields.at == fields.stop ? OK : REFUSED;
}

static PyObject *
listed(const Fragments *columns, Py_ssize_t count, Py_ssize_t rows, const char *wanted)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        if (!wanted[i])
            continue;
        PyObject *pair = Py_BuildValue("(y#y#)", (const char *)columns[i].offsets,
                                       (Py_ssize_t)sizeof(int) * (rows + 1),
                                       columns[i].text.bytes ? columns[i].text.bytes : "",
                                       columns[i].text.size);
        if (pair == NULL || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

/* columns(messages, names, types, wanted): [(32-bit offsets, fragments) of each wanted column]. */
static PyObject *
columns_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *messages, *names, *answer = NULL;
    const char *types, *wanted;
    Py_ssize_t types_size, wanted_size;
    if (!PyArg_ParseTuple(arguments, "O!O!y#y#", &PyList_Type, &messages, &PyTuple_Type, &names,
                          &types, &types_size, &wanted, &wanted_size))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(names), rows = PyList_GET_SIZE(messages);
    if (!are_bytes(names, count) || types_size != 2 * count || wanted_size != count)
        return PyErr_Format(PyExc_ValueError, "names, types and wanted of different sizes");
    Fragments *columns = new_columns(count, rows, wanted);
    int made = columns == NULL ? ERROR : OK;
    for (Py_ssize_t number = 0; made == OK && number < rows; number++) {
        PyObject *message = PyList_GET_ITEM(messages, number);
        made = PyBytes_Check(message) ? put_row(columns, number, message, names, types, wanted)
                                      : REFUSED;
    }
    if (made == OK)
        answer = listed(columns, count, rows, wanted);
    free_columns(columns, count);
    return made == OK ? answer : given_up(made);
}

/* ------------------------------------------------------------------ lines */

/* After the quote that ends the string whose first quote is before `at`; NULL if none does. */
static const unsigned char *
string_end(const unsigned char *at, const unsigned char *stop)
{
    const unsigned char *begin = at, *quote;
    while (at < stop && (quote = memchr(at, '"', (size_t)(stop - at))) != NULL) {
        const unsigned char *before = quote;
        while (before > begin && before[-1] == '\\')
            before--;
        if ((quote - before) % 2 == 0)
            return quote + 1;
        at = quote + 1;
    }
    return NULL;
}

/* Where the value ends that begins at `at`; NULL if there is none. */
static const unsigned char *
value_end(const unsigned char *at, const unsigned char *stop)
{
    const unsigned char *begin = at;
    int depth = 0;
    if (at < stop && *at == '"')
        return string_end(at + 1, stop);
    while (at != NULL && at < stop) {
        unsigned char byte = *at;
        if (byte == '"') {
            if (depth == 0)
                return NULL;
            at = string_end(at + 1, stop);
            continue;
        }
        if (byte == '[' || byte == '{') {
            if (depth == 0 && at > begin)
                return NULL;
            depth++;
        } else if (byte == ']' || byte == '}') {
            if (depth == 0)
                return at > begin ? at : NULL;
            if (--depth == 0)
                return at + 1;
        } else if (byte == ',' && depth == 0)
            return at > begin ? at : NULL;
        at++;
    }
    return NULL;
}

static inline int
take_head(Span *line, PyObject *head)
{
    Py_ssize_t size = PyBytes_GET_SIZE(head);
    if (line->stop - line->at < size
        || memcmp(line->at, PyBytes_AS_STRING(head), (size_t)size) != 0)
        return REFUSED;
    line->at += size;
    return OK;
}

/* The value of the next member of a line, whose head has to be that of the column. */
static inline int
next_member(Span *line, PyObject *head, Span *value)
{
    if (take_head(line, head) != OK)
        return REFUSED;
    const unsigned char *end = value_end(line->at, line->stop);
    if (end == NULL)
        return REFUSED;
    *value = (Span){line->at, end};
    line->at = end;
    return OK;
}

/* Whether a line goes on with the next column after its first `read`, and ends as one. */
static inline int
ends_as_line(Span line, PyObject *heads, Py_ssize_t read)
{
    if (read == PyTuple_GET_SIZE(heads))
        return line.stop - line.at == 1 && *line.at == '}';
    return take_head(&line, PyTuple_GET_ITEM(heads, read)) == OK && line.at < line.stop
           && line.stop[-1] == '}';
}

/* How many columns there are up to the last wanted one. */
static Py_ssize_t
up_to_last(const char *wanted, Py_ssize_t count)
{
    while (count > 0 && !wanted[count - 1])
        count--;
    return count;
}

static int
put_line(Fragments *columns, Py_ssize_t number, Span line, PyObject *heads, const char *wanted,
         Py_ssize_t read)
{
    Span value;
    for (Py_ssize_t i = 0; i < read; i++) {
        if (next_member(&line, PyTuple_GET_ITEM(heads, i), &value) != OK)
            return REFUSED;
        if (!wanted[i])
            continue;
        int made = put(&columns[i].text, value.at, value.stop - value.at);
        if (made != OK)
            return made;
        columns[i].offsets[number + 1] = (int)columns[i].text.size;
    }
    return ends_as_line(line, heads, read) ? OK : REFUSED;
}

/* Offsets for more rows, those of all columns alike. */
static int
more_rows(Fragments *columns, Py_ssize_t count, Py_ssize_t *room, const char *wanted)
{
    if (*room > (MOST_TEXT - 1) / 2)
        return REFUSED;
    Py_ssize_t rows = 2 * *room;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!wanted[i])
            continue;
        int *offsets = PyMem_Realloc(columns[i].offsets, ((size_t)rows + 1) * sizeof(int));
        if (offsets == NULL) {
            PyErr_NoMemory();
            return ERROR;
        }
        columns[i].offsets = offsets;
    }
    *room = rows;
    return OK;
}

/* lines(block, heads, wanted, whole): [(32-bit offsets, fragments) of each wanted column].
   If not `whole`, a line isn't read behind the last of them. */
static PyObject *
lines_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *block, *heads, *answer = NULL;
    const char *wanted;
    Py_ssize_t wanted_size, rows = 0, room = FIRST_ROWS;
    int whole;
    if (!PyArg_ParseTuple(arguments, "O!O!y#p", &PyBytes_Type, &block, &PyTuple_Type, &heads,
                          &wanted, &wanted_size, &whole))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(heads);
    if (!are_bytes(heads, count) || wanted_size != count)
        return PyErr_Format(PyExc_ValueError, "heads and wanted of different sizes");
    Py_ssize_t read = whole ? count : up_to_last(wanted, count);
    Fragments *columns = new_columns(count, room, wanted);
    int made = columns == NULL ? ERROR : OK;
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(block);
    const unsigned char *stop = at + PyBytes_GET_SIZE(block);
    for (; made == OK && at < stop; rows++) {
        const unsigned char *end = memchr(at, '\n', (size_t)(stop - at));
        if (end == NULL)
            made = REFUSED;
        else if (rows == room)
            made = more_rows(columns, count, &room, wanted);
        if (made == OK)
            made = put_line(columns, rows, (Span){at, end}, heads, wanted, read);
        if (made == OK)
            at = end + 1;
    }
    if (made == OK)
        answer = listed(columns, count, rows, wanted);
    free_columns(columns, count);
    return made == OK ? answer : given_up(made);
}

/* ------------------------------------------------------------------ messages */

/* messages(buffer, longest): (whole messages, where the rest begins, the size it has to have). */
static PyObject *
messages_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *buffer;
    Py_ssize_t longest;
    if (!PyArg_ParseTuple(arguments, "O!n", &PyBytes_Type, &buffer, &longest))
        return NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(buffer);
    Span left = {bytes, bytes + PyBytes_GET_SIZE(buffer)};
    PyObject *found = PyList_New(0);
    Py_ssize_t needed = 1;
    while (found != NULL && left.at < left.stop) {
        Span from = left;
        Py_ssize_t size;
        if (read_varint(&from, &size) != OK) {
            if (left.stop - left.at < 9)
                break;
            Py_DECREF(found);
            return Py_NewRef(Py_None);
        }
        if (size > longest) {
            Py_DECREF(found);
            return Py_NewRef(Py_None);
        }
        if (size > from.stop - from.at) {
            needed = from.at - left.at + size;
            break;
        }
        PyObject *message = PyBytes_FromStringAndSize((const char *)from.at, size);
        if (message == NULL || PyList_Append(found, message) < 0)
            Py_CLEAR(found);
        Py_XDECREF(message);
        left.at = from.at + size;
    }
    return found == NULL ? NULL : Py_BuildValue("(Nnn)", found, (Py_ssize_t)(left.at - bytes), needed);
}

static PyObject *
bounds(Span part, const unsigned char *bytes)
{
    if (part.at == NULL)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(nn)", (Py_ssize_t)(part.at - bytes), (Py_ssize_t)(part.stop - bytes));
}

/* ------------------------------------------------------------------ changes */

typedef struct {
    Span action, key, old, new;
} Change;

static int
read_change(Span left, Change *parts)
{
    Span part;
    *parts = (Change){.key = {left.at, left.at}};
    while (left.at < left.stop) {
        unsigned char tag = *left.at;
        if ((tag & 7) != 2 || read_part(&left, tag, &part) != OK)
            return REFUSED;
        if (tag == ACTION)
            parts->action = part;
        else if (tag == KEY)
            parts->key = part;
        else if (tag == OLD)
            parts->old = part;
        else if (tag == NEW)
            parts->new = part;
    }
    return parts->action.at == NULL ? REFUSED : OK;
}

/* change(message): (action, key, bounds of the old row, bounds of the new row). */
static PyObject *
change(PyObject *module, PyObject *message)
{
    (void)module;
    if (!PyBytes_Check(message))
        return PyErr_Format(PyExc_TypeError, "a message is bytes");
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    Change parts;
    if (read_change((Span){bytes, bytes + PyBytes_GET_SIZE(message)}, &parts) != OK)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(y#y#NN)", parts.action.at, parts.action.stop - parts.action.at,
                         parts.key.at, parts.key.stop - parts.key.at, bounds(parts.old, bytes),
                         bounds(parts.new, bytes));
}

static inline int
begins(Span text, const char *with, Py_ssize_t size)
{
    return text.stop - text.at >= size && memcmp(text.at, with, (size_t)size) == 0;
}

static const unsigned char *
find(Span in, const char *wanted, Py_ssize_t size)
{
    while (in.stop - in.at >= size) {
        const unsigned char *at = memchr(in.at, *wanted, (size_t)(in.stop - in.at - size + 1));
        if (at == NULL || memcmp(at, wanted, (size_t)size) == 0)
            return at;
        in.at = at + 1;
    }
    return NULL;
}

/* As jsonl._rows: where the new row is of a change whose rows begin at `rows`; NULL: deleted. */
static int
new_in_line(char action, Span rows, Span *new)
{
    *new = (Span){NULL, NULL};
    if (rows.at >= rows.stop || rows.stop[-1] != '}')
        return REFUSED;
    if (action == 'I' && begins(rows, ",\"new\":{", 8)) {
        *new = (Span){rows.at + 7, rows.stop - 1};
        return OK;
    }
    if (action == 'I' || !begins(rows, ",\"old\":{", 8))
        return REFUSED;
    if (action == 'D')
        return OK;
    const unsigned char *middle = find(rows, "},\"new\":{", 9);
    /* A row may hold these very bytes inside a json value: only a single find is sure. */
    if (middle == NULL || find((Span){middle + 1, rows.stop}, "},\"new\":{", 9) != NULL)
        return REFUSED;
    *new = (Span){middle + 8, rows.stop - 1};
    return OK;
}

/* The new rows that a diff is read for, and those that were found. */
typedef struct {
    PyObject *known, *found;
    /* The keys that are wanted: from `low` to before `high`; a bound that is NULL: no such end. */
    Span low, high;
    /* What the columns' members begin with; empty: rows are taken as they stand. */
    PyObject *heads;
    const char *wanted;
    /* The row that was reduced to the wanted columns last. */
    Text row;
} NewRows;

/* The arguments behind the first two: low, high, known, found, heads, wanted. */
static int
take_new_rows(PyObject *arguments, NewRows *to)
{
    const char *low, *high;
    Py_ssize_t low_size, high_size, wanted_size;
    *to = (NewRows){NULL};
    if (!PyArg_ParseTuple(arguments, "z#z#OO!O!y#", &low, &low_size, &high, &high_size, &to->known,
                          &PyDict_Type, &to->found, &PyTuple_Type, &to->heads, &to->wanted,
                          &wanted_size))
        return ERROR;
    if (low != NULL)
        to->low = (Span){(const unsigned char *)low, (const unsigned char *)low + low_size};
    if (high != NULL)
        to->high = (Span){(const unsigned char *)high, (const unsigned char *)high + high_size};
    Py_ssize_t count = PyTuple_GET_SIZE(to->heads);
    int fit = are_bytes(to->heads, count) && wanted_size == count;
    for (Py_ssize_t i = 0; fit && i < count; i++)
        fit = PyBytes_GET_SIZE(PyTuple_GET_ITEM(to->heads, i)) > 0;
    if (!fit)
        PyErr_Format(PyExc_ValueError, "empty heads, or heads and wanted of different sizes");
    return fit ? OK : ERROR;
}

static int
is_below(Span key, Span bound)
{
    Py_ssize_t size = key.stop - key.at, bound_size = bound.stop - bound.at;
    int order = memcmp(key.at, bound.at, (size_t)(size < bound_size ? size : bound_size));
    return order < 0 || (order == 0 && size < bound_size);
}

static int
is_wanted(Span key, const NewRows *to)
{
    return (to->low.at == NULL || !is_below(key, to->low))
           && (to->high.at == NULL || is_below(key, to->high));
}

/* A line with the wanted columns of a line. */
static int
project_line(Span line, NewRows *to)
{
    Py_ssize_t read = up_to_last(to->wanted, PyTuple_GET_SIZE(to->heads));
    Span value;
    int made = OK;
    to->row.size = 0;
    for (Py_ssize_t i = 0; made == OK && i < read; i++) {
        PyObject *head = PyTuple_GET_ITEM(to->heads, i);
        if (next_member(&line, head, &value) != OK)
            return REFUSED;
        if (!to->wanted[i])
            continue;
        /* All heads begin with a comma but the first one's, which has a brace. */
        made = put(&to->row, to->row.size ? "," : "{", 1);
        if (made == OK)
            made = put(&to->row, PyBytes_AS_STRING(head) + 1, PyBytes_GET_SIZE(head) - 1);
        if (made == OK)
            made = put(&to->row, value.at, value.stop - value.at);
    }
    if (made == OK && !ends_as_line(line, to->heads, read))
        return REFUSED;
    return made == OK ? put(&to->row, "}", 1) : made;
}

/* A Struct with the wanted members of a Struct. */
static int
project_struct(Span fields, NewRows *to)
{
    Span value;
    int made = OK;
    to->row.size = 0;
    for (Py_ssize_t i = 0; made == OK && i < PyTuple_GET_SIZE(to->heads); i++) {
        const unsigned char *entry = fields.at;
        if (next_value(&fields, PyTuple_GET_ITEM(to->heads, i), &value) != OK)
            return REFUSED;
        if (to->wanted[i])
            made = put(&to->row, entry, fields.at - entry);
    }
    return made == OK && fields.at != fields.stop ? REFUSED : made;
}

/* The key of a change whose new row is wanted and not known; else NULL. */
static int
new_key(Span text, const NewRows *to, PyObject **key)
{
    *key = NULL;
    if (!is_wanted(text, to))
        return OK;
    PyObject *made = PyBytes_FromStringAndSize((const char *)text.at, text.stop - text.at);
    int held = made == NULL ? -1 : PySequence_Contains(to->known, made);
    if (held == 0)
        *key = made;
    else
        Py_XDECREF(made);
    return held < 0 ? ERROR : OK;
}

/* found[key] = row, or None where there is none. */
static int
add_row(PyObject *key, Span row, NewRows *to, int (*project)(Span, NewRows *),
        PyObject *(*row_of)(Span))
{
    if (row.at != NULL && PyTuple_GET_SIZE(to->heads)) {
        int made = project(row, to);
        if (made != OK)
            return made;
        const unsigned char *at = (const unsigned char *)to->row.bytes;
        row = (Span){at, at + to->row.size};
    }
    PyObject *value = row.at == NULL ? Py_NewRef(Py_None) : row_of(row);
    int made = value != NULL && PyDict_SetItem(to->found, key, value) == 0 ? OK : ERROR;
    Py_XDECREF(value);
    return made;
}

static PyObject *
line_row(Span row)
{
    return PyBytes_FromStringAndSize((const char *)row.at, row.stop - row.at);
}

static int
add_line(Span line, NewRows *to)
{
    static const char *const heads[] = {"{\"action\":\"INSERT\",\"key\":\"",
                                        "{\"action\":\"UPDATE\",\"key\":\"",
                                        "{\"action\":\"DELETE\",\"key\":\""};
    const Py_ssize_t head_size = 26;
    int which = 0;
    if (line.at == line.stop)
        return OK;
    while (which < 3 && !begins(line, heads[which], head_size))
        which++;
    if (which == 3)
        return REFUSED;
    Span text = {line.at + head_size, NULL}, new;
    text.stop = memchr(text.at, '"', (size_t)(line.stop - text.at));
    if (text.stop == NULL || memchr(text.at, '\\', (size_t)(text.stop - text.at)) != NULL)
        return REFUSED;
    PyObject *key;
    int made = new_key(text, to, &key);
    if (key != NULL
        && (made = new_in_line("IUD"[which], (Span){text.stop + 1, line.stop}, &new)) == OK)
        made = add_row(key, new, to, project_line, line_row);
    Py_XDECREF(key);
    return made;
}

/* new_lines(block, at, (low, high, known, found, heads, wanted)): puts the new rows of the lines from
   `at` into `found`: of keys from `low` to before `high` that aren't known, with the wanted columns
   only (without heads: as they stand). Gives where the first line begins that Python has to read. */
static PyObject *
new_lines(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *block, *others;
    NewRows to;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(arguments, "O!nO!", &PyBytes_Type, &block, &start, &PyTuple_Type, &others)
        || take_new_rows(others, &to) != OK)
        return NULL;
    if (start < 0 || start > PyBytes_GET_SIZE(block))
        return PyErr_Format(PyExc_ValueError, "no line begins there");
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(block);
    const unsigned char *at = bytes + start, *stop = bytes + PyBytes_GET_SIZE(block), *end;
    int made = OK;
    while (at < stop && (end = memchr(at, '\n', (size_t)(stop - at))) != NULL
           && (made = add_line((Span){at, end}, &to)) == OK)
        at = end + 1;
    PyMem_Free(to.row.bytes);
    return made == ERROR ? NULL : PyLong_FromSsize_t(at - bytes);
}

/* The SnapshotRow message of a Struct. */
static PyObject *
snapshot_row(Span row)
{
    unsigned char head[16] = {ENTRY};
    Py_ssize_t head_size = 1, size = row.stop - row.at;
    size_t left = (size_t)size;
    for (; left > 0x7F; left >>= 7)
        head[head_size++] = (unsigned char)(left | 0x80);
    head[head_size++] = (unsigned char)left;
    PyObject *made = PyBytes_FromStringAndSize(NULL, head_size + size);
    if (made != NULL) {
        memcpy(PyBytes_AS_STRING(made), head, (size_t)head_size);
        memcpy(PyBytes_AS_STRING(made) + head_size, row.at, (size_t)size);
    }
    return made;
}

static int
add_message(PyObject *message, NewRows *to)
{
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    Change parts;
    if (read_change((Span){bytes, bytes + PyBytes_GET_SIZE(message)}, &parts) != OK)
        return REFUSED;
    Py_ssize_t size = parts.action.stop - parts.action.at;
    if (size != 6
        || (!begins(parts.action, "INSERT", 6) && !begins(parts.action, "UPDATE", 6)
            && !begins(parts.action, "DELETE", 6)))
        return REFUSED;
    PyObject *key;
    int made = new_key(parts.key, to, &key);
    if (key != NULL)
        made = add_row(key, parts.new, to, project_struct, snapshot_row);
    Py_XDECREF(key);
    return made;
}

/* new_messages(messages, number, (low, high, known, found, heads, wanted)): the same of the changes
   from that number on, as SnapshotRow messages. Gives the number of the first that Python has to
   read. */
static PyObject *
new_messages(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *messages, *others;
    NewRows to;
    Py_ssize_t number;
    if (!PyArg_ParseTuple(arguments, "O!nO!", &PyList_Type, &messages, &number, &PyTuple_Type,
                          &others)
        || take_new_rows(others, &to) != OK)
        return NULL;
    if (number < 0)
        return PyErr_Format(PyExc_ValueError, "no message has that number");
    int made = OK;
    for (; made == OK && number < PyList_GET_SIZE(messages); number++) {
        PyObject *message = Py_NewRef(PyList_GET_ITEM(messages, number));
        made = PyBytes_Check(message) ? add_message(message, &to) : REFUSED;
        Py_DECREF(message);
        if (made != OK)
            break;
    }
    PyMem_Free(to.row.bytes);
    return made == ERROR ? NULL : PyLong_FromSsize_t(number);
}

static PyMethodDef methods[] = {
    {"row", row, METH_VARARGS, "A row's line and its key's fragments; None: Python reads it."},
    {"columns", columns_of, METH_VARARGS, "Rows as columns of fragments; None: Python reads them."},
    {"lines", lines_of, METH_VARARGS, "Lines as columns of fragments; None: Python splits them."},
    {"messages", messages_of, METH_VARARGS, "The whole messages of a buffer; None: damaged."},
    {"change", change, METH_O, "The parts of a change; None: Python says what is wrong."},
    {"new_lines", new_lines, METH_VARARGS, "The new rows of lines, as far as they are usual."},
    {"new_messages", new_messages, METH_VARARGS, "The new rows of messages, in the same way."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_struct_scan", "google.protobuf.Struct to JSON.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__struct_scan(void)
{
    return PyModule_Create(&definition);
}
