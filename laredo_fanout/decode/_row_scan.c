/* Plain rows of the stream, from messages to keys and lines, without an object for each value.

   A row is a list of columns, each a kind byte (n null, t text, u unchanged TOAST) and, for text,
   a length and that many bytes
   (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html, TupleData).
   Every message that isn't a plain row (another kind, an old row, a value that can't be decoded) is
   handed back unchanged for row_decoder.py, which decodes rare messages and raises every error. A
   property test compares the two byte by byte. */

#define PY_SSIZE_T_CLEAN
#include "_plain_values.h"

enum { ENVELOPE = 25, RELATION = 26, TUPLE = 30, FIRST_COLUMN = 33 };
enum { MESSAGE_KEPT = 1024 }; /* pgoutput.KEPT_BYTES */
enum { INSERT = 1, UPDATE = 2 };

/* ------------------------------------------------------------------ rows */

static unsigned long long
number(const unsigned char *at, int bytes)
{
    unsigned long long value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static int
is_in_key(const PlainRows *self, Py_ssize_t column)
{
    for (Py_ssize_t i = 0; i < self->key_columns; i++)
        if (self->key[i] == column)
            return 1;
    return 0;
}

static Outcome
write_line(PlainRows *self, const unsigned char *at, const unsigned char *end)
{
    self->used = 0;
    self->partial = 0;
    if (!reserve(self, 1))
        return NOT_PLAIN;
    add_byte(self, PARTIAL); /* left out of a whole line */
    for (Py_ssize_t column = 0; column < self->columns; column++) {
        PyObject *prefix = PyTuple_GET_ITEM(self->prefixes, column);
        if (at >= end || !reserve(self, PyBytes_GET_SIZE(prefix) + 8))
            return NOT_PLAIN;
        add(self, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix));
        self->fragments[column].start = self->used;
        unsigned char kind = *at++;
        if (kind == 'n' && !is_in_key(self, column)) {
            add(self, "null", 4);
        } else if (kind == 'u' && self->key_columns && !is_in_key(self, column)) {
            add_byte(self, MISSING);
            self->partial = 1;
        } else if (kind == 't' && end - at >= 4) {
            Value value = {at + 4, (Py_ssize_t)number(at, 4)};
            if (value.size > end - value.text)
                return NOT_PLAIN;
            at = value.text + value.size;
            Outcome outcome = add_value(self, column, value);
            if (outcome != DONE)
                return outcome;
        } else {
            return NOT_PLAIN;
        }
        self->fragments[column].stop = self->used;
    }
    if (at != end || !reserve(self, 1))
        return NOT_PLAIN;
    add_byte(self, '}');
    return DONE;
}

static PyObject *
fragment(const PlainRows *self, Py_ssize_t key_column)
{
    Fragment found = self->fragments[self->key[key_column]];
    return PyBytes_FromStringAndSize(self->out + found.start, found.stop - found.start);
}

static PyObject *
single_key(const PlainRows *self)
{
    Fragment found = self->fragments[self->key[0]];
    const char *start = self->out + found.start;
    Py_ssize_t size = found.stop - found.start;
    if (size == 0 || start[0] != '"')
        return PyBytes_FromStringAndSize(start, size);
    if (memchr(start, '\\', (size_t)size) == NULL)
        return PyBytes_FromStringAndSize(start + 1, size > 1 ? size - 2 : 0);
    PyObject *escaped = fragment(self, 0);
    if (escaped == NULL)
        return NULL;
    PyObject *key = PyObject_CallOneArg(self->key_of, escaped);
    Py_DECREF(escaped);
    return key;
}

static PyObject *
composite_key(const PlainRows *self)
{
    Py_ssize_t size = 1 + self->key_columns;
    for (Py_ssize_t i = 0; i < self->key_columns; i++) {
        Fragment part = self->fragments[self->key[i]];
        size += part.stop - part.start;
    }
    PyObject *key = PyBytes_FromStringAndSize(NULL, size);
    if (key == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(key);
    for (Py_ssize_t i = 0; i < self->key_columns; i++) {
        Fragment part = self->fragments[self->key[i]];
        *at++ = i ? ',' : '[';
        memcpy(at, self->out + part.start, (size_t)(part.stop - part.start));
        at += part.stop - part.start;
    }
    *at = ']';
    return key;
}

/* Without key columns the key is made of the line. */
static PyObject *
key_of_row(const PlainRows *self, PyObject *line)
{
    if (self->key_columns == 0)
        return PyObject_CallOneArg(self->key_of, line);
    return self->key_columns == 1 ? single_key(self) : composite_key(self);
}

static Outcome
put(PlainRows *self, int action)
{
    int left_out = !self->partial;
    PyObject *line = PyBytes_FromStringAndSize(self->out + left_out, self->used - left_out);
    PyObject *key = line == NULL ? NULL : key_of_row(self, line);
    Py_ssize_t count = PyByteArray_GET_SIZE(self->actions);
    Outcome outcome = NOT_PLAIN;
    if (key == NULL || line == NULL || PyByteArray_Resize(self->actions, count + 1) < 0)
        goto end;
    PyByteArray_AS_STRING(self->actions)[count] = (char)action;
    if (PyList_Append(self->keys, key) < 0 || PyList_Append(self->lines, line) < 0)
        outcome = FAILED;
    else
        outcome = DONE;
end:
    Py_XDECREF(key);
    Py_XDECREF(line);
    return outcome;
}

static Outcome
decode(PlainRows *self, const unsigned char *message, Py_ssize_t size)
{
    int action = message[ENVELOPE] == 'U' ? UPDATE : INSERT;
    if ((Py_ssize_t)number(message + TUPLE + 1, 2) != self->columns
        || (action == UPDATE && self->key_columns == 0))
        return NOT_PLAIN;
    Outcome outcome = write_line(self, message + FIRST_COLUMN, message + size);
    return outcome == DONE ? put(self, action) : outcome;
}

/* ------------------------------------------------------------------ PlainRows */

static void
plain_rows_dealloc(PyObject *object)
{
    PlainRows *self = (PlainRows *)object;
    PyObject_GC_UnTrack(object);
    Py_TYPE(object)->tp_clear(object);
    PyMem_Free(self->rules);
    PyMem_Free(self->key);
    PyMem_Free(self->fragments);
    PyMem_Free(self->out);
    Py_TYPE(object)->tp_free(object);
}

static int
plain_rows_traverse(PyObject *object, visitproc visit, void *arg)
{
    PlainRows *self = (PlainRows *)object;
    Py_VISIT(self->prefixes);
    Py_VISIT(self->encoders);
    Py_VISIT(self->key_of);
    Py_VISIT(self->actions);
    Py_VISIT(self->keys);
    Py_VISIT(self->lines);
    return 0;
}

static int
plain_rows_clear(PyObject *object)
{
    PlainRows *self = (PlainRows *)object;
    Py_CLEAR(self->prefixes);
    Py_CLEAR(self->encoders);
    Py_CLEAR(self->key_of);
    Py_CLEAR(self->actions);
    Py_CLEAR(self->keys);
    Py_CLEAR(self->lines);
    return 0;
}

static int
take_key(PlainRows *self, PyObject *key)
{
    self->key_columns = PyTuple_GET_SIZE(key);
    self->key = PyMem_Calloc((size_t)self->key_columns + 1, sizeof *self->key);
    if (self->key == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < self->key_columns; i++) {
        self->key[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(key, i));
        if (self->key[i] < 0 || self->key[i] >= self->columns) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a key column isn't among the columns");
            return 0;
        }
    }
    return 1;
}

static int
take_columns(PlainRows *self, const char *rules, Py_ssize_t count)
{
    if (PyTuple_GET_SIZE(self->prefixes) != count || PyTuple_GET_SIZE(self->encoders) != count) {
        PyErr_SetString(PyExc_ValueError, "every column needs one rule, prefix and encoder");
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(self->prefixes, i))) {
            PyErr_SetString(PyExc_TypeError, "a prefix must be bytes");
            return 0;
        }
    self->columns = count;
    self->rules = PyMem_Malloc((size_t)count + 1);
    self->fragments = PyMem_Calloc((size_t)count + 1, sizeof *self->fragments);
    if (self->rules == NULL || self->fragments == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(self->rules, rules, (size_t)count);
    return 1;
}

static PyObject *
plain_rows_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {
        "rules", "prefixes", "encoders", "key", "key_of", "actions", "keys", "lines", NULL
    };
    const char *rules;
    Py_ssize_t count;
    PyObject *prefixes, *encoders, *key, *key_of, *actions, *keys, *lines;
    if (!PyArg_ParseTupleAndKeywords(args, names, "y#O!O!O!OO!O!O!:PlainRows", keywords, &rules,
                                     &count, &PyTuple_Type, &prefixes, &PyTuple_Type, &encoders,
                                     &PyTuple_Type, &key, &key_of, &PyByteArray_Type, &actions,
                                     &PyList_Type, &keys, &PyList_Type, &lines))
        return NULL;
    PlainRows *self = (PlainRows *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->prefixes = Py_NewRef(prefixes);
    self->encoders = Py_NewRef(encoders);
    self->key_of = Py_NewRef(key_of);
    self->actions = Py_NewRef(actions);
    self->keys = Py_NewRef(keys);
    self->lines = Py_NewRef(lines);
    if (!take_columns(self, rules, count) || !take_key(self, key)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyTypeObject PlainRowsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "laredo_fanout.decode._row_scan.PlainRows",
    .tp_basicsize = sizeof(PlainRows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = plain_rows_new,
    .tp_dealloc = plain_rows_dealloc,
    .tp_traverse = plain_rows_traverse,
    .tp_clear = plain_rows_clear,
};

/* ------------------------------------------------------------------ scan */

typedef struct {
    PyObject *routes, *touched, *plain_name;
    PyObject *route;
    PlainRows *plain;
    unsigned char relation[4];
} Way;

/* Find the relation's layout, and add its route to the touched ones. */
static Outcome
find_way(Way *way, const unsigned char *relation)
{
    if (way->plain != NULL && memcmp(way->relation, relation, 4) == 0)
        return DONE;
    Py_CLEAR(way->plain);
    PyObject *oid = PyBytes_FromStringAndSize((const char *)relation, 4);
    if (oid == NULL)
        return FAILED;
    PyObject *route = PyDict_GetItemWithError(way->routes, oid);
    Py_DECREF(oid);
    if (route == NULL)
        return PyErr_Occurred() ? FAILED : NOT_PLAIN;
    PyObject *plain = PyObject_GetAttr(route, way->plain_name);
    if (plain == NULL)
        return FAILED;
    if (!Py_IS_TYPE(plain, &PlainRowsType)) {
        Py_DECREF(plain);
        return NOT_PLAIN;
    }
    way->plain = (PlainRows *)plain;
    memcpy(way->relation, relation, 4);
    return PyDict_SetItem(way->touched, route, Py_None) < 0 ? FAILED : DONE;
}

static Outcome
take(Way *way, const unsigned char *message, Py_ssize_t size)
{
    if (size < FIRST_COLUMN || message[0] != 'w' || message[TUPLE] != 'N'
        || (message[ENVELOPE] != 'U' && message[ENVELOPE] != 'I'))
        return NOT_PLAIN;
    Outcome outcome = find_way(way, message + RELATION);
    return outcome == DONE ? decode(way->plain, message, size) : outcome;
}

/* Number of a message's bytes to hand back: at most MESSAGE_KEPT of a logical message, as ours are
   short. Any role may write one of a gigabyte, of which libpq has two copies already. */
static Py_ssize_t
kept(const unsigned char *message, Py_ssize_t size)
{
    int is_logical = size > MESSAGE_KEPT && message[0] == 'w' && message[ENVELOPE] == 'M';
    return is_logical ? MESSAGE_KEPT : size;
}

static PyObject *
scan(PyObject *module, PyObject *args)
{
    PyObject *get, *routes, *touched, *left = NULL, *result = NULL;
    Py_ssize_t limit, taken = 0, received = 0, size = 1;
    unsigned long long wal_end = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnO!O!:scan", &get, &limit, &PyDict_Type, &routes,
                          &PyDict_Type, &touched))
        return NULL;
    PyObject *at_once = PyLong_FromLong(1);
    Way way = {routes, touched, PyUnicode_InternFromString("plain"), NULL, NULL, {0}};
    if (at_once == NULL || way.plain_name == NULL)
        goto end;
    while (left == NULL && taken < limit) {
        PyObject *got = PyObject_CallOneArg(get, at_once);
        if (got == NULL)
            goto end;
        if (!PyTuple_Check(got) || PyTuple_GET_SIZE(got) != 2) {
            PyErr_SetString(PyExc_TypeError, "get must give a size and a message");
            Py_DECREF(got);
            goto end;
        }
        size = PyLong_AsSsize_t(PyTuple_GET_ITEM(got, 0));
        Py_buffer view;
        if ((size == -1 && PyErr_Occurred())
            || (size > 0 && PyObject_GetBuffer(PyTuple_GET_ITEM(got, 1), &view, PyBUF_SIMPLE) < 0)) {
            Py_DECREF(got);
            goto end;
        }
        if (size <= 0) {
            Py_DECREF(got);
            break;
        }
        taken++;
        received += size;
        Outcome outcome = take(&way, view.buf, view.len);
        if (outcome == NOT_PLAIN && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) {
            outcome = FAILED; /* a signal handler raised */
        } else if (outcome == NOT_PLAIN) {
            /* The Python decoder meets the error again, and raises it. */
            PyErr_Clear();
            left = PyBytes_FromStringAndSize(view.buf, kept(view.buf, view.len));
        } else if (outcome == DONE) {
            wal_end = number((const unsigned char *)view.buf + 9, 8);
        }
        PyBuffer_Release(&view);
        Py_DECREF(got);
        if (outcome == FAILED || (outcome == NOT_PLAIN && left == NULL))
            goto end;
    }
    result = Py_BuildValue("nOnnK", size, left ? left : Py_None, taken, received, wal_end);
end:
    Py_XDECREF(left);
    Py_XDECREF(at_once);
    Py_XDECREF(way.plain_name);
    Py_XDECREF(way.plain);
    return result;
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, "The compiled form of row_scan.scan_plainly."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_row_scan", "Plain rows of the stream.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__row_scan(void)
{
    if (PyType_Ready(&PlainRowsType) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObjectRef(module, "PlainRows", (PyObject *)&PlainRowsType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
