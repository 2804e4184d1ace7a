/* Frames of a spool's messages, written and split: the compiled form of frames.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

enum { SIZE = 4, ENVELOPE = 25, RELATION = 26, OID = 4 };

/* ------------------------------------------------------------------ gather */

static int
is_row_of(const unsigned char *relation, const unsigned char *message, Py_ssize_t size)
{
    if (size < RELATION + OID || message[0] != 'w')
        return 0;
    unsigned char kind = message[ENVELOPE];
    return (kind == 'I' || kind == 'U' || kind == 'D')
           && memcmp(message + RELATION, relation, OID) == 0;
}

static int
put_frame(PyObject *into, const unsigned char *message, Py_ssize_t size)
{
    Py_ssize_t at = PyByteArray_GET_SIZE(into);
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a message is larger than 4 GB");
        return -1;
    }
    if (PyByteArray_Resize(into, at + SIZE + size) < 0)
        return -1;
    unsigned char *to = (unsigned char *)PyByteArray_AS_STRING(into) + at;
    to[0] = (unsigned char)(size >> 24);
    to[1] = (unsigned char)(size >> 16);
    to[2] = (unsigned char)(size >> 8);
    to[3] = (unsigned char)size;
    memcpy(to + SIZE, message, (size_t)size);
    return 0;
}

static PyObject *
gather(PyObject *module, PyObject *args)
{
    PyObject *get, *into, *left = NULL, *result = NULL;
    const char *relation;
    Py_ssize_t limit, oid, taken = 0, size = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ony#O!:gather", &get, &limit, &relation, &oid,
                          &PyByteArray_Type, &into))
        return NULL;
    PyObject *at_once = PyLong_FromLong(1);
    if (at_once == NULL)
        return NULL;
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
        int failed = 0;
        if (oid == OID && is_row_of((const unsigned char *)relation, view.buf, view.len)) {
            failed = put_frame(into, view.buf, view.len) < 0;
        } else {
            left = PyBytes_FromStringAndSize(view.buf, view.len);
            failed = left == NULL;
        }
        PyBuffer_Release(&view);
        Py_DECREF(got);
        if (failed)
            goto end;
    }
    result = Py_BuildValue("nOn", size, left ? left : Py_None, taken);
end:
    Py_XDECREF(left);
    Py_DECREF(at_once);
    return result;
}

/* ------------------------------------------------------------------ Frames */

typedef struct {
    PyObject_HEAD
    PyObject *block;
    Py_ssize_t at;
} Frames;

static PyObject *
frames_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    (void)names;
    if (!PyArg_ParseTuple(args, ":Frames"))
        return NULL;
    Frames *self = (Frames *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->block = PyBytes_FromStringAndSize(NULL, 0);
    if (self->block == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
frames_dealloc(Frames *self)
{
    Py_XDECREF(self->block);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
frames_add(Frames *self, PyObject *more)
{
    if (!PyBytes_Check(more)) {
        PyErr_SetString(PyExc_TypeError, "a block is bytes");
        return NULL;
    }
    Py_ssize_t left = PyBytes_GET_SIZE(self->block) - self->at;
    PyObject *block = Py_NewRef(more);
    if (left) {
        Py_SETREF(block, PyBytes_FromStringAndSize(NULL, left + PyBytes_GET_SIZE(more)));
        if (block == NULL)
            return NULL;
        memcpy(PyBytes_AS_STRING(block), PyBytes_AS_STRING(self->block) + self->at, (size_t)left);
        memcpy(PyBytes_AS_STRING(block) + left, PyBytes_AS_STRING(more),
               (size_t)PyBytes_GET_SIZE(more));
    }
    Py_SETREF(self->block, block);
    self->at = 0;
    Py_RETURN_NONE;
}

static PyObject *
frames_get(Frames *self, PyObject *ignored)
{
    (void)ignored;
    Py_ssize_t left = PyBytes_GET_SIZE(self->block) - self->at;
    const unsigned char *from = (const unsigned char *)PyBytes_AS_STRING(self->block) + self->at;
    Py_ssize_t size = 0;
    if (left >= SIZE)
        size = (Py_ssize_t)from[0] << 24 | from[1] << 16 | from[2] << 8 | from[3];
    if (left < SIZE || size > left - SIZE)
        return Py_BuildValue("ny#", (Py_ssize_t)0, "", (Py_ssize_t)0);
    self->at += SIZE + size;
    return Py_BuildValue("ny#", size, (const char *)from + SIZE, size);
}

static PyObject *
frames_left(Frames *self, void *ignored)
{
    (void)ignored;
    return PyLong_FromSsize_t(PyBytes_GET_SIZE(self->block) - self->at);
}

static PyMethodDef frames_methods[] = {
    {"add", (PyCFunction)frames_add, METH_O, NULL},
    {"get", (PyCFunction)frames_get, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef frames_properties[] = {
    {"left", (getter)frames_left, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject FramesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "laredo_fanout.decode._frames.Frames",
    .tp_basicsize = sizeof(Frames),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = frames_new,
    .tp_dealloc = (destructor)frames_dealloc,
    .tp_methods = frames_methods,
    .tp_getset = frames_properties,
};

/* ------------------------------------------------------------------ module */

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS, "The compiled form of frames.gather_plainly."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_frames", "A spool's frames.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__frames(void)
{
    if (PyType_Ready(&FramesType) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObjectRef(module, "Frames", (PyObject *)&FramesType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
