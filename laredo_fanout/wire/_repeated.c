/* A `repeated bytes` field of a protobuf message in one pass:
   https://protobuf.dev/programming-guides/encoding/ */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

static char *
put_varint(char *at, size_t number)
{
    while (number > 0x7F) {
        *at++ = (char)(number | 0x80);
        number >>= 7;
    }
    *at++ = (char)number;
    return at;
}

static Py_ssize_t
varint_size(size_t number)
{
    Py_ssize_t size = 1;
    while (number >>= 7)
        size++;
    return size;
}

/* Number of a value's bytes that are sent: all but the last `trimmed`. */
static Py_ssize_t
sent_size(PyObject *value, Py_ssize_t trimmed)
{
    Py_ssize_t size = PyBytes_GET_SIZE(value);
    return size > trimmed ? size - trimmed : 0;
}

static Py_ssize_t
field_size(PyObject *values, Py_ssize_t tag_size, Py_ssize_t trimmed)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        if (!PyBytes_Check(value)) {
            PyErr_Format(PyExc_TypeError, "value %zd isn't bytes", i);
            return -1;
        }
        Py_ssize_t length = sent_size(value, trimmed);
        size += tag_size + varint_size((size_t)length) + length;
    }
    return size;
}

static PyObject *
repeated(PyObject *module, PyObject *args)
{
    const char *tag;
    Py_ssize_t tag_size, trimmed;
    PyObject *values;
    (void)module;
    if (!PyArg_ParseTuple(
            args, "y#O!n:repeated", &tag, &tag_size, &PyList_Type, &values, &trimmed))
        return NULL;
    if (trimmed < 0) {
        PyErr_SetString(PyExc_ValueError, "trimmed must not be negative");
        return NULL;
    }
    Py_ssize_t size = field_size(values, tag_size, trimmed);
    PyObject *field = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (field == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(field);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        size_t length = (size_t)sent_size(value, trimmed);
        memcpy(at, tag, (size_t)tag_size);
        at = put_varint(at + tag_size, length);
        memcpy(at, PyBytes_AS_STRING(value), length);
        at += length;
    }
    return field;
}

static PyMethodDef methods[] = {
    {"repeated", repeated, METH_VARARGS, "The field with this tag and these values."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_repeated", "A repeated field in one pass.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__repeated(void)
{
    return PyModule_Create(&definition);
}
