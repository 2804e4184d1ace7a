/* New rows of a diff's changes, for a reader that wants some keys and columns only.

   Part of _struct_scan.c, which includes this file. */

/* ------------------------------------------------------------------ parts of a change */

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

/* The new row of a change whose rows begin at `rows`; NULL: deleted. As jsonl._rows(). */
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
    /* A json value may contain the same bytes: only a single find is certain. */
    if (middle == NULL || find((Span){middle + 1, rows.stop}, "},\"new\":{", 9) != NULL)
        return REFUSED;
    *new = (Span){middle + 8, rows.stop - 1};
    return OK;
}

/* The new rows that a diff is read for, and those that were found. */
typedef struct {
    PyObject *known, *found;
    /* Wanted keys: from `low` to before `high`; NULL: no such bound. */
    Span low, high;
    /* Text before each column's value; empty: rows are taken verbatim. */
    PyObject *heads;
    const char *wanted;
    /* The last row that was reduced to the wanted columns. */
    Text row;
} NewRows;

/* Parses (low, high, known, found, heads, wanted), the third argument of both functions below. */
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
        /* The first head begins with a brace, all others with a comma. */
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
   `at` on into `found`: those of keys from `low` to before `high` that aren't known, with the wanted
   columns only (without heads: verbatim). Returns the start of the first line that Python reads. */
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

/* new_messages(messages, number, (low, high, known, found, heads, wanted)): does for the changes from
   `number` on what new_lines does; rows are SnapshotRow messages. Returns the number of the first
   change that Python reads. */
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
