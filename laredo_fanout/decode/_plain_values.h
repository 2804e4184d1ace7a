/* Values of a plain row, as JSON, and the line to which they are added.

   Only _row_scan.c includes it, so that every function can be inlined. */

#include <Python.h>
#include <string.h>

enum { PARTIAL = 1, MISSING = 2 }; /* laredo_model/line.py */

/* The rules of laredo_model/column.py, by which a column's text becomes JSON; a test compares the
   letters. laredo_model/line.py implements them in Python. */
enum rule {
    BOOLEAN = 'b', INTEGER = 'i', OID = 'o', FLOAT = 'f', DECIMAL = 'd', TIMESTAMP = 't',
    JSON = 'j', NESTING = 'n', TEXT = 's', ARRAY = 'a'
};

typedef struct {
    const unsigned char *text;
    Py_ssize_t size;
} Value;

typedef struct {
    Py_ssize_t start, stop;
} Fragment;

typedef struct {
    PyObject_HEAD
    Py_ssize_t columns, key_columns;
    char *rules;
    Py_ssize_t *key;
    PyObject *prefixes, *encoders, *key_of, *actions, *keys, *lines;
    Fragment *fragments;
    char *out;
    Py_ssize_t used, capacity;
    int partial;
} PlainRows;

typedef enum { FAILED = -1, NOT_PLAIN = 0, DONE = 1 } Outcome;

/* ------------------------------------------------------------------ the line being written */

static int
reserve(PlainRows *self, Py_ssize_t size)
{
    if (size <= self->capacity - self->used)
        return 1;
    if (size > PY_SSIZE_T_MAX / 2 - self->used)
        return 0;
    Py_ssize_t capacity = 2 * (self->used + size);
    char *out = PyMem_Realloc(self->out, (size_t)capacity);
    if (out == NULL)
        return 0;
    self->out = out;
    self->capacity = capacity;
    return 1;
}

static void
add(PlainRows *self, const void *bytes, Py_ssize_t size)
{
    memcpy(self->out + self->used, bytes, (size_t)size);
    self->used += size;
}

static void
add_byte(PlainRows *self, char byte)
{
    self->out[self->used++] = byte;
}

static void
add_quoted(PlainRows *self, Value value)
{
    add_byte(self, '"');
    add(self, value.text, value.size);
    add_byte(self, '"');
}

/* ------------------------------------------------------------------ values */

static void
add_escaped(PlainRows *self, unsigned char byte)
{
    static const char digits[] = "0123456789abcdef";
    char name = 0;
    switch (byte) {
    case '"': case '\\': name = (char)byte; break;
    case '\b': name = 'b'; break;
    case '\t': name = 't'; break;
    case '\n': name = 'n'; break;
    case '\f': name = 'f'; break;
    case '\r': name = 'r'; break;
    }
    add_byte(self, '\\');
    if (name) {
        add_byte(self, name);
        return;
    }
    add(self, "u00", 3);
    add_byte(self, digits[byte >> 4]);
    add_byte(self, digits[byte & 15]);
}

static int
is_utf8(Value value)
{
    PyObject *text = PyUnicode_DecodeUTF8((const char *)value.text, value.size, NULL);
    if (text == NULL)
        return 0;
    Py_DECREF(text);
    return 1;
}

static int
is_escaped(unsigned char byte)
{
    return (byte < 0x20) | (byte == '"') | (byte == '\\');
}

static Outcome
add_text(PlainRows *self, Value value)
{
    unsigned char all = 0, escaped = 0;
    for (Py_ssize_t at = 0; at < value.size; at++) { /* without a branch: several bytes at once */
        all |= value.text[at];
        escaped |= is_escaped(value.text[at]);
    }
    if (all >= 0x80 && !is_utf8(value))
        return NOT_PLAIN;
    if (!escaped) {
        add_quoted(self, value);
        return DONE;
    }
    /* Room for every byte as \u00xx and the quotes. */
    if (value.size > PY_SSIZE_T_MAX / 8 || !reserve(self, 6 * value.size + 2))
        return NOT_PLAIN;
    add_byte(self, '"');
    for (Py_ssize_t at = 0; at < value.size; at++) {
        unsigned char byte = value.text[at];
        if (is_escaped(byte))
            add_escaped(self, byte);
        else
            add_byte(self, (char)byte);
    }
    add_byte(self, '"');
    return DONE;
}

static int
is_date(Value value)
{
    /* Ten digits and dashes, and a blank: years of four digits, no infinity. */
    if (value.size < 11 || value.text[10] != ' ')
        return 0;
    for (int at = 0; at < 10; at++)
        if (value.text[at] != '-' && (value.text[at] < '0' || value.text[at] > '9'))
            return 0;
    return 1;
}

static Outcome
add_timestamp(PlainRows *self, Value value)
{
    Py_ssize_t stop = value.size;
    if (!is_date(value))
        return NOT_PLAIN;
    int in_utc = stop >= 14 && memcmp(value.text + stop - 3, "+00", 3) == 0;
    if (in_utc)
        stop -= 3;
    if (memchr(value.text + 11, ' ', (size_t)(stop - 11)) != NULL)
        return NOT_PLAIN; /* BC */
    add_byte(self, '"');
    add(self, value.text, 10);
    add_byte(self, 'T');
    add(self, value.text + 11, stop - 11);
    if (in_utc)
        add(self, "+00:00", 6);
    add_byte(self, '"');
    return DONE;
}

static Outcome
add_encoded(PlainRows *self, Value value, PyObject *encode)
{
    PyObject *text = PyBytes_FromStringAndSize((const char *)value.text, value.size);
    if (text == NULL)
        return FAILED;
    PyObject *json = PyObject_CallOneArg(encode, text);
    Py_DECREF(text);
    if (json == NULL)
        return NOT_PLAIN;
    Outcome outcome = NOT_PLAIN;
    if (PyBytes_Check(json) && reserve(self, PyBytes_GET_SIZE(json))) {
        add(self, PyBytes_AS_STRING(json), PyBytes_GET_SIZE(json));
        outcome = DONE;
    }
    Py_DECREF(json);
    return outcome;
}

static void
add_json(PlainRows *self, Value value)
{
    static const char breaks[] = "\n\r";
    char *start = self->out + self->used;
    add(self, value.text, value.size);
    for (int i = 0; i < 2; i++)
        for (char *at = start; (at = memchr(at, breaks[i], (size_t)(start + value.size - at)));)
            *at = ' ';
}

static int
is_number(Value value)
{
    /* NaN and Infinity aren't. */
    unsigned char last = value.size ? value.text[value.size - 1] : 'N';
    return last != 'N' && last != 'y';
}

static Outcome
add_value(PlainRows *self, Py_ssize_t column, Value value)
{
    PyObject *encode = PyTuple_GET_ITEM(self->encoders, column);
    if (!reserve(self, value.size + 16))
        return NOT_PLAIN;
    switch (self->rules[column]) {
    case INTEGER:
    case OID:
        add(self, value.text, value.size);
        return DONE;
    case BOOLEAN:
        if (value.size == 1 && value.text[0] == 't')
            add(self, "true", 4);
        else
            add(self, "false", 5);
        return DONE;
    case FLOAT:
        if (is_number(value))
            add(self, value.text, value.size);
        else
            add_quoted(self, value);
        return DONE;
    case TIMESTAMP:
        if (add_timestamp(self, value) == DONE)
            return DONE;
        return add_encoded(self, value, encode);
    case JSON:
        add_json(self, value);
        return DONE;
    case DECIMAL:
    case NESTING:
    case TEXT:
        return add_text(self, value);
    default:
        return add_encoded(self, value, encode);
    }
}
