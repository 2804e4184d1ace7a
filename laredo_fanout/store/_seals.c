/* The seals of stored rows, many in one pass: the compiled form of seal.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifndef __SIZEOF_INT128__
#error "the product of two 64-bit numbers needs 128 bits; seal.py works without this module"
#endif

#define SEAL 8
#define PREFIX 4
#define LANES 4
#define MULTIPLIER 0x9E3779B97F4A7C15ULL

static const uint64_t begins[LANES] = {
    0xA0761D6478BD642FULL, 0xE7037ED1A0B428DBULL, 0x8EBC6AF09C88C6E3ULL, 0x589965CC75374CC3ULL,
};

static inline uint64_t
mix(uint64_t number)
{
    unsigned __int128 product = (unsigned __int128)number * MULTIPLIER;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t
little_endian(uint64_t word)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

static inline uint64_t
word_at(const char *at, size_t size)
{
    uint64_t word = 0;
    memcpy(&word, at, size);
    return little_endian(word);
}

static inline void
absorb(uint64_t *lanes, const char *at, size_t size)
{
    for (; size >= LANES * 8; at += LANES * 8, size -= LANES * 8)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = mix(lanes[lane] ^ word_at(at + 8 * lane, 8));
    int lane = 0;
    for (; size >= 8; at += 8, size -= 8, lane++)
        lanes[lane] = mix(lanes[lane] ^ word_at(at, 8));
    if (size)
        lanes[lane] = mix(lanes[lane] ^ word_at(at, size));
}

static uint64_t
number_of(const char *key, size_t key_size, const char *line, size_t line_size)
{
    uint64_t lanes[LANES];
    memcpy(lanes, begins, sizeof lanes);
    absorb(lanes, line, line_size);
    absorb(lanes, key, key_size);
    uint64_t number = mix(lanes[0] ^ key_size);
    number = mix(number ^ lanes[1] ^ line_size);
    number = mix(number ^ lanes[2]);
    return mix(number ^ lanes[3]);
}

/* True if the value is bytes; otherwise an error is set. */
static int
is_bytes(PyObject *value, const char *what)
{
    if (PyBytes_Check(value))
        return 1;
    PyErr_Format(PyExc_TypeError, "a %s isn't bytes", what);
    return 0;
}

static int
is_stored_key(PyObject *key)
{
    if (!is_bytes(key, "stored key"))
        return 0;
    if (PyBytes_GET_SIZE(key) >= PREFIX)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a stored key is shorter than its prefix");
    return 0;
}

static uint64_t
row_number(PyObject *stored, const char *line, size_t line_size)
{
    const char *key = PyBytes_AS_STRING(stored) + PREFIX;
    return number_of(key, (size_t)PyBytes_GET_SIZE(stored) - PREFIX, line, line_size);
}

/* True if the seal fits; the seal is added to the sum. */
static int
row_fits(PyObject *stored, PyObject *value, uint64_t *sum)
{
    Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL;
    if (size < 0)
        return 0;
    const char *line = PyBytes_AS_STRING(value);
    uint64_t number = row_number(stored, line, (size_t)size);
    *sum += number;
    return number == word_at(line + size, SEAL);
}

static PyObject *
sealed(PyObject *module, PyObject *args)
{
    PyObject *stored, *lines;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!:sealed", &PyList_Type, &stored, &PyList_Type, &lines))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(lines);
    if (PyList_GET_SIZE(stored) != count) {
        PyErr_SetString(PyExc_ValueError, "the numbers of keys and lines differ");
        return NULL;
    }
    PyObject *values = PyList_New(count);
    if (values == NULL)
        return NULL;
    uint64_t sum = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = PyList_GET_ITEM(stored, i), *line = PyList_GET_ITEM(lines, i);
        if (!is_stored_key(key) || !is_bytes(line, "line"))
            goto failed;
        Py_ssize_t size = PyBytes_GET_SIZE(line);
        PyObject *value = PyBytes_FromStringAndSize(NULL, size + SEAL);
        if (value == NULL)
            goto failed;
        uint64_t number = row_number(key, PyBytes_AS_STRING(line), (size_t)size);
        uint64_t written = little_endian(number);
        memcpy(PyBytes_AS_STRING(value), PyBytes_AS_STRING(line), (size_t)size);
        memcpy(PyBytes_AS_STRING(value) + size, &written, SEAL);
        PyList_SET_ITEM(values, i, value);
        sum += number;
    }
    return Py_BuildValue("NK", values, (unsigned long long)sum);
failed:
    Py_DECREF(values);
    return NULL;
}

static PyObject *
checked(PyObject *module, PyObject *args)
{
    PyObject *stored, *values;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!:checked", &PyList_Type, &stored, &PyList_Type, &values))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(values);
    if (PyList_GET_SIZE(stored) != count) {
        PyErr_SetString(PyExc_ValueError, "the numbers of keys and values differ");
        return NULL;
    }
    uint64_t sum = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = PyList_GET_ITEM(stored, i), *value = PyList_GET_ITEM(values, i);
        if (value == Py_None)
            continue;
        if (!is_stored_key(key) || !is_bytes(value, "value"))
            return NULL;
        if (PyBytes_GET_SIZE(value) && !row_fits(key, value, &sum))
            return Py_BuildValue("Kn", (unsigned long long)0, i);
    }
    return Py_BuildValue("Kn", (unsigned long long)sum, (Py_ssize_t)-1);
}

static PyObject *
opened(PyObject *module, PyObject *args)
{
    PyObject *pairs;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!:opened", &PyList_Type, &pairs))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(pairs), damaged = -1;
    PyObject *keys = PyList_New(count), *lines = PyList_New(count);
    const char *prefix = NULL;
    uint64_t sum = 0;
    if (keys == NULL || lines == NULL)
        damaged = -2;
    for (Py_ssize_t i = 0; i < count && damaged == -1; i++) {
        PyObject *pair = PyList_GET_ITEM(pairs, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "a row isn't a key and a value");
            damaged = -2;
            break;
        }
        PyObject *stored = PyTuple_GET_ITEM(pair, 0);
        PyObject *value = PyTuple_GET_ITEM(pair, 1);
        if (!is_stored_key(stored) || !is_bytes(value, "value")) {
            damaged = -2;
            break;
        }
        if (!row_fits(stored, value, &sum)) {
            damaged = i;
            break;
        }
        if (prefix == NULL)
            prefix = PyBytes_AS_STRING(stored);
        if (memcmp(prefix, PyBytes_AS_STRING(stored), PREFIX) != 0) {
            damaged = i;
            break;
        }
        PyObject *key = PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(stored) + PREFIX, PyBytes_GET_SIZE(stored) - PREFIX);
        if (key == NULL) {
            damaged = -2;
            break;
        }
        PyList_SET_ITEM(keys, i, key);
        PyObject *line = PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value) - SEAL);
        if (line == NULL)
            damaged = -2;
        else
            PyList_SET_ITEM(lines, i, line);
    }
    if (damaged == -1)
        return Py_BuildValue("NNKn", keys, lines, (unsigned long long)sum, damaged);
    Py_XDECREF(keys);
    Py_XDECREF(lines);
    if (damaged == -2)
        return NULL;
    return Py_BuildValue("[][]Kn", (unsigned long long)0, damaged);
}

static PyObject *
joined(PyObject *module, PyObject *args)
{
    Py_buffer key;
    PyObject *parts;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*O!:joined", &key, &PyTuple_Type, &parts))
        return NULL;
    Py_ssize_t size = 0;
    PyObject *value = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (!is_bytes(part, "part"))
            goto done;
        size += PyBytes_GET_SIZE(part);
    }
    value = PyBytes_FromStringAndSize(NULL, size + SEAL);
    if (value == NULL)
        goto done;
    char *begin = PyBytes_AS_STRING(value), *at = begin;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        memcpy(at, PyBytes_AS_STRING(part), (size_t)PyBytes_GET_SIZE(part));
        at += PyBytes_GET_SIZE(part);
    }
    uint64_t number = number_of(key.buf, (size_t)key.len, begin, (size_t)size);
    uint64_t written = little_endian(number);
    memcpy(at, &written, SEAL);
done:
    PyBuffer_Release(&key);
    return value;
}

static PyObject *
seal_number(PyObject *module, PyObject *args)
{
    Py_buffer key, value;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*:seal_number", &key, &value))
        return NULL;
    uint64_t number = number_of(key.buf, (size_t)key.len, value.buf, (size_t)value.len);
    PyBuffer_Release(&key);
    PyBuffer_Release(&value);
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *
fits(PyObject *module, PyObject *args)
{
    Py_buffer key, stored;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*:fits", &key, &stored))
        return NULL;
    const char *value = stored.buf;
    int same = 0;
    if (stored.len >= SEAL) {
        size_t size = (size_t)stored.len - SEAL;
        uint64_t number = number_of(key.buf, (size_t)key.len, value, size);
        same = number == word_at(value + size, SEAL);
    }
    PyBuffer_Release(&key);
    PyBuffer_Release(&stored);
    return PyBool_FromLong(same);
}

static PyMethodDef methods[] = {
    {"sealed", sealed, METH_VARARGS, "Values of these rows, and the sum of their seals."},
    {"checked", checked, METH_VARARGS, "The sum of these values' seals, and the first damaged."},
    {"opened", opened, METH_VARARGS, "Keys and lines of stored rows, sum, damaged."},
    {"joined", joined, METH_VARARGS, "These parts as one value, with its seal."},
    {"fits", fits, METH_VARARGS, "True if the value is as it was written under this key."},
    {"seal_number", seal_number, METH_VARARGS, "The seal of one key and value, as a number."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_seals", "Seals of many rows in one pass.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__seals(void)
{
    return PyModule_Create(&definition);
}
