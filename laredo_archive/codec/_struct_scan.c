/* Converts rows that are google.protobuf.Structs to JSON (docs/archive-format.md, protobuf), and
   splits rows that are JSON into columns of values.

   It reads only rows as our own writer makes them, with members in the order of the columns. For
   anything else it returns None, and struct_reader.py reads the row, or reports what is wrong. */

#define PY_SSIZE_T_CLEAN
#include "_struct_values.h"

#define FIRST_ROWS 2

/* ------------------------------------------------------------------ rows */

/* Value of the next member of a Struct, which must have the column's name. */
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

/* End of the string whose first quote is before `at`, after its last quote; NULL: it has none. */
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

/* End of the value that begins at `at`; NULL if there is none. */
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

/* Value of the next member of a line, which must have the column's head. */
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

/* True if after its first `read` columns a line has the next one, or ends, and ends in a brace. */
static inline int
ends_as_line(Span line, PyObject *heads, Py_ssize_t read)
{
    if (read == PyTuple_GET_SIZE(heads))
        return line.stop - line.at == 1 && *line.at == '}';
    return take_head(&line, PyTuple_GET_ITEM(heads, read)) == OK && line.at < line.stop
           && line.stop[-1] == '}';
}

/* Number of columns up to the last wanted one. */
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

/* Doubles the room for offsets, in every wanted column. */
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
   If not `whole`, a line isn't read beyond the last of them. */
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

/* messages(buffer, longest): (whole messages, start of the rest, size that the rest must reach). */
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

/* ------------------------------------------------------------------ new rows, and the module */

#include "_new_rows.h"

static PyMethodDef methods[] = {
    {"row", row, METH_VARARGS, "A row's line and its key's fragments; None: Python reads it."},
    {"columns", columns_of, METH_VARARGS, "Rows as columns of fragments; None: Python reads them."},
    {"lines", lines_of, METH_VARARGS, "Lines as columns of fragments; None: Python splits them."},
    {"messages", messages_of, METH_VARARGS, "The whole messages of a buffer; None: Python reads it."},
    {"change", change, METH_O, "The parts of a change; None: Python reads it."},
    {"new_lines", new_lines, METH_VARARGS, "The new rows of lines, up to one that Python reads."},
    {"new_messages", new_messages, METH_VARARGS, "The new rows of messages, up to one that Python reads."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_struct_scan", "Rows and changes of archives, parsed.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__struct_scan(void)
{
    return PyModule_Create(&definition);
}
