/* A row as google.protobuf.Struct, from the values that its JSON was parsed to:
   https://protobuf.dev/reference/protobuf/google.protobuf/#struct

   Lengths come before what they measure, so a row is walked twice: once to measure each value,
   once to write it. struct_rows.py has the same in Python, for whatever is refused here. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEEPEST 28
#define EXACT (1LL << 53)
#define FEW 64
#define DIGITS 24

/* The sizes of values in the order of the walk. */
typedef struct {
    Py_ssize_t *sizes;
    Py_ssize_t count, room;
    Py_ssize_t few[FEW];
} Sizes;

/* What is neither an error nor encoded here: the caller does it in Python. */
enum { OK = 0, ERROR = -1, REFUSED = -2 };

static Py_ssize_t
varint_size(Py_ssize_t number)
{
    Py_ssize_t size = 1;
    while (number >>= 7)
        size++;
    return size;
}

static char *
put_varint(char *at, Py_ssize_t number)
{
    while (number > 0x7F) {
        *at++ = (char)(number | 0x80);
        number >>= 7;
    }
    *at++ = (char)number;
    return at;
}

static Py_ssize_t
delimited_size(Py_ssize_t size)
{
    return 1 + varint_size(size) + size;
}

static char *
put_head(char *at, char tag, Py_ssize_t size)
{
    *at++ = tag;
    return put_varint(at, size);
}

static Py_ssize_t
new_place(Sizes *sizes)
{
    if (sizes->count == sizes->room) {
        Py_ssize_t room = 2 * sizes->room;
        Py_ssize_t *old = sizes->sizes == sizes->few ? NULL : sizes->sizes;
        Py_ssize_t *more = PyMem_Realloc(old, (size_t)room * sizeof(Py_ssize_t));
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (old == NULL)
            memcpy(more, sizes->few, sizeof(sizes->few));
        sizes->sizes = more;
        sizes->room = room;
    }
    return sizes->count++;
}

/* Text as UTF-8; NULL without an exception where it has none (a lone surrogate). */
static const char *
utf8(PyObject *text, Py_ssize_t *size)
{
    const char *bytes = PyUnicode_AsUTF8AndSize(text, size);
    if (bytes == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        PyErr_Clear();
    return bytes;
}

static int
refused(void)
{
    return PyErr_Occurred() ? ERROR : REFUSED;
}

/* The digits of an integer that a double doesn't hold; 0 for one that it does. */
static int
digits(PyObject *number, char *text, double *value)
{
    int overflow;
    long long found = PyLong_AsLongLongAndOverflow(number, &overflow);
    *value = (double)found;
    if (overflow)
        return REFUSED;
    if (found >= -EXACT && found <= EXACT)
        return 0;
    return snprintf(text, DIGITS, "%lld", found);
}

static int measure(PyObject *value, int depth, Sizes *sizes, Py_ssize_t *size);

static int
measure_members(PyObject *members, int depth, Sizes *sizes, Py_ssize_t *size)
{
    Py_ssize_t at = 0, total = 0;
    PyObject *name, *value;
    while (PyDict_Next(members, &at, &name, &value)) {
        Py_ssize_t name_size, value_size;
        if (!PyUnicode_Check(name) || utf8(name, &name_size) == NULL)
            return refused();
        int found = measure(value, depth, sizes, &value_size);
        if (found != OK)
            return found;
        total += delimited_size(delimited_size(name_size) + delimited_size(value_size));
    }
    *size = total;
    return OK;
}

static int
measure_items(PyObject *items, int depth, Sizes *sizes, Py_ssize_t *size)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        Py_ssize_t item_size;
        int found = measure(PyList_GET_ITEM(items, i), depth, sizes, &item_size);
        if (found != OK)
            return found;
        total += delimited_size(item_size);
    }
    *size = total;
    return OK;
}

/* The size of a Value; that of a struct or a list is noted before those of what it holds. */
static int
measure(PyObject *value, int depth, Sizes *sizes, Py_ssize_t *size)
{
    double number;
    char text[DIGITS];
    Py_ssize_t length;
    if (PyUnicode_CheckExact(value)) {
        if (utf8(value, &length) == NULL)
            return refused();
        *size = delimited_size(length);
        return OK;
    }
    if (value == Py_None || PyBool_Check(value)) {
        *size = 2;
        return OK;
    }
    if (PyLong_CheckExact(value)) {
        length = digits(value, text, &number);
        if (length < 0)
            return REFUSED;
        *size = length ? delimited_size(length) : 9;
        return OK;
    }
    if (PyFloat_CheckExact(value)) {
        *size = 9;
        return isfinite(PyFloat_AS_DOUBLE(value)) ? OK : REFUSED;
    }
    int is_dict = PyDict_CheckExact(value);
    if (depth >= DEEPEST || !(is_dict || PyList_CheckExact(value)))
        return REFUSED;
    Py_ssize_t place = new_place(sizes), inside;
    if (place < 0)
        return ERROR;
    int found = is_dict ? measure_members(value, depth + 1, sizes, &inside)
                        : measure_items(value, depth + 1, sizes, &inside);
    if (found != OK)
        return found;
    sizes->sizes[place] = inside;
    *size = delimited_size(inside);
    return OK;
}

static char *put(char *at, PyObject *value, Sizes *sizes);

/* The size of a Value, the sizes noted from the present place on. */
static Py_ssize_t
noted_size(PyObject *value, Sizes *sizes)
{
    double number;
    char text[DIGITS];
    Py_ssize_t length;
    if (PyUnicode_CheckExact(value)) {
        utf8(value, &length);
        return delimited_size(length);
    }
    if (PyLong_CheckExact(value) && (length = digits(value, text, &number)))
        return delimited_size(length);
    if (value == Py_None || PyBool_Check(value))
        return 2;
    if (PyDict_CheckExact(value) || PyList_CheckExact(value))
        return delimited_size(sizes->sizes[sizes->count]);
    return 9;
}

static char *
put_bytes(char *at, char tag, const char *bytes, Py_ssize_t size)
{
    at = put_head(at, tag, size);
    memcpy(at, bytes, (size_t)size);
    return at + size;
}

static char *
put_text(char *at, char tag, PyObject *text)
{
    Py_ssize_t size;
    const char *bytes = utf8(text, &size);
    return put_bytes(at, tag, bytes, size);
}

static char *
put_members(char *at, PyObject *members, Sizes *sizes)
{
    Py_ssize_t next = 0, name_size;
    PyObject *name, *value;
    while (PyDict_Next(members, &next, &name, &value)) {
        Py_ssize_t value_size = noted_size(value, sizes);
        utf8(name, &name_size);
        at = put_head(at, 0x0A, delimited_size(name_size) + delimited_size(value_size));
        at = put_text(at, 0x0A, name);
        at = put_head(at, 0x12, value_size);
        at = put(at, value, sizes);
    }
    return at;
}

static char *
put_number(char *at, double number)
{
    unsigned long long bits;
    memcpy(&bits, &number, sizeof(bits));
    *at++ = 0x11;
    for (int i = 0; i < 8; i++, bits >>= 8)
        *at++ = (char)(bits & 0xFF);
    return at;
}

static char *
put(char *at, PyObject *value, Sizes *sizes)
{
    double number;
    char text[DIGITS];
    if (PyUnicode_CheckExact(value))
        return put_text(at, 0x1A, value);
    if (value == Py_None) {
        *at++ = 0x08;
        *at++ = 0;
        return at;
    }
    if (PyBool_Check(value)) {
        *at++ = 0x20;
        *at++ = value == Py_True;
        return at;
    }
    if (PyLong_CheckExact(value)) {
        int count = digits(value, text, &number);
        return count ? put_bytes(at, 0x1A, text, count) : put_number(at, number);
    }
    if (PyFloat_CheckExact(value))
        return put_number(at, PyFloat_AS_DOUBLE(value));
    Py_ssize_t inside = sizes->sizes[sizes->count++];
    if (PyDict_CheckExact(value))
        return put_members(put_head(at, 0x2A, inside), value, sizes);
    at = put_head(at, 0x32, inside);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++) {
        PyObject *item = PyList_GET_ITEM(value, i);
        at = put_head(at, 0x0A, noted_size(item, sizes));
        at = put(at, item, sizes);
    }
    return at;
}

static PyObject *
struct_of(PyObject *module, PyObject *row)
{
    (void)module;
    if (!PyDict_CheckExact(row))
        return PyErr_Format(PyExc_TypeError, "a row is a dict");
    Sizes sizes = {.count = 0, .room = FEW};
    sizes.sizes = sizes.few;
    Py_ssize_t size;
    PyObject *encoded = NULL;
    int found = measure_members(row, 0, &sizes, &size);
    if (found == OK && (encoded = PyBytes_FromStringAndSize(NULL, size)) != NULL) {
        sizes.count = 0;
        put_members(PyBytes_AS_STRING(encoded), row, &sizes);
    }
    if (sizes.sizes != sizes.few)
        PyMem_Free(sizes.sizes);
    return found == REFUSED ? Py_NewRef(Py_None) : encoded;
}

static PyMethodDef methods[] = {
    {"struct_of", struct_of, METH_O, "The Struct of a row; None: Python has to encode it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_struct_rows", "Rows as google.protobuf.Struct.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__struct_rows(void)
{
    return PyModule_Create(&definition);
}
