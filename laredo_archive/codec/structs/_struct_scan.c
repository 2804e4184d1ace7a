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

static int
put_line(Fragments *columns, Py_ssize_t number, Span line, PyObject *heads, const char *wanted)
{
    Py_ssize_t count = PyTuple_GET_SIZE(heads);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *head = PyTuple_GET_ITEM(heads, i);
        Py_ssize_t size = PyBytes_GET_SIZE(head);
        if (line.stop - line.at < size
            || memcmp(line.at, PyBytes_AS_STRING(head), (size_t)size) != 0)
            return REFUSED;
        line.at += size;
        const unsigned char *end = value_end(line.at, line.stop);
        if (end == NULL)
            return REFUSED;
        if (wanted[i]) {
            int made = put(&columns[i].text, line.at, end - line.at);
            if (made != OK)
                return made;
            columns[i].offsets[number + 1] = (int)columns[i].text.size;
        }
        line.at = end;
    }
    return line.stop - line.at == 1 && *line.at == '}' ? OK : REFUSED;
}

/* lines(block, rows, heads, wanted): [(32-bit offsets, fragments) of each wanted column]. */
static PyObject *
lines_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *block, *heads, *answer = NULL;
    const char *wanted;
    Py_ssize_t rows, wanted_size;
    if (!PyArg_ParseTuple(arguments, "O!nO!y#", &PyBytes_Type, &block, &rows, &PyTuple_Type,
                          &heads, &wanted, &wanted_size))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(heads);
    if (!are_bytes(heads, count) || wanted_size != count || rows < 0)
        return PyErr_Format(PyExc_ValueError, "heads and wanted of different sizes");
    Fragments *columns = new_columns(count, rows, wanted);
    int made = columns == NULL ? ERROR : OK;
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(block);
    const unsigned char *stop = at + PyBytes_GET_SIZE(block);
    for (Py_ssize_t number = 0; made == OK && number < rows; number++) {
        const unsigned char *end = at < stop ? memchr(at, '\n', (size_t)(stop - at)) : NULL;
        if (end == NULL) {
            made = REFUSED;
            break;
        }
        made = put_line(columns, number, (Span){at, end}, heads, wanted);
        at = end + 1;
    }
    if (made == OK && at != stop)
        made = REFUSED;
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

/* change(message): (action, key, bounds of the old row, bounds of the new row). */
static PyObject *
change(PyObject *module, PyObject *message)
{
    (void)module;
    if (!PyBytes_Check(message))
        return PyErr_Format(PyExc_TypeError, "a message is bytes");
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    Span left = {bytes, bytes + PyBytes_GET_SIZE(message)}, part;
    Span action = {NULL, NULL}, key = {bytes, bytes}, old = {NULL, NULL}, new = {NULL, NULL};
    while (left.at < left.stop) {
        unsigned char tag = *left.at;
        if ((tag & 7) != 2 || read_part(&left, tag, &part) != OK)
            return Py_NewRef(Py_None);
        if (tag == ACTION)
            action = part;
        else if (tag == KEY)
            key = part;
        else if (tag == OLD)
            old = part;
        else if (tag == NEW)
            new = part;
    }
    if (action.at == NULL)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(y#y#NN)", action.at, action.stop - action.at, key.at, key.stop - key.at,
                         bounds(old, bytes), bounds(new, bytes));
}

static PyMethodDef methods[] = {
    {"row", row, METH_VARARGS, "A row's line and its key's fragments; None: Python reads it."},
    {"columns", columns_of, METH_VARARGS, "Rows as columns of fragments; None: Python reads them."},
    {"lines", lines_of, METH_VARARGS, "Lines as columns of fragments; None: Python splits them."},
    {"messages", messages_of, METH_VARARGS, "The whole messages of a buffer; None: damaged."},
    {"change", change, METH_O, "The parts of a change; None: Python says what is wrong."},
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
