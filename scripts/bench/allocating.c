/* Makes and frees `count` tensors in each of the ways in which a call's outputs could be made; see allocating.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

typedef void *Handle; /* an at::Tensor * */
typedef int32_t Status;

static struct {
    Status (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
    Status (*reinterpret)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
    Status (*delete_tensor)(Handle);
    PyObject *(*wrap)(Handle); /* a Python tensor of the same TensorImpl */
} api;

enum { MOST = 1024 };

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static PyObject *configure(PyObject *self, PyObject *args)
{
    unsigned long long empty, reinterpret, delete_tensor, wrap;
    if (!PyArg_ParseTuple(args, "KKKK", &empty, &reinterpret, &delete_tensor, &wrap))
        return NULL;
    *(void **)&api.empty = (void *)(uintptr_t)empty;
    *(void **)&api.reinterpret = (void *)(uintptr_t)reinterpret;
    *(void **)&api.delete_tensor = (void *)(uintptr_t)delete_tensor;
    *(void **)&api.wrap = (void *)(uintptr_t)wrap;
    Py_RETURN_NONE;
}

static int too_many(int count)
{
    if (count > MOST)
        PyErr_Format(PyExc_ValueError, "at most %d tensors at once", MOST);
    return count > MOST;
}

static PyObject *wrapped(Handle handle)
{
    PyObject *tensor = api.wrap(handle);
    api.delete_tensor(handle);
    return tensor;
}

/* Frees what was made since `before`; the answer of a way that was to make `count`. */
static PyObject *freed(PyObject **made, int n, int count, int64_t before)
{
    int64_t between = now();
    for (int k = 0; k < n; k++)
        Py_DECREF(made[k]);
    if (n == count)
        return Py_BuildValue("LL", (long long)(between - before), (long long)(now() - between));
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "a tensor could not be made");
    return NULL;
}

/* generated(function, arguments, count): the function that generated code calls, as the launcher calls it. */
static PyObject *generated(PyObject *self, PyObject *args)
{
    PyObject *function, *arguments, *made[MOST];
    int count, n = 0;
    if (!PyArg_ParseTuple(args, "OO!i", &function, &PyTuple_Type, &arguments, &count) || too_many(count))
        return NULL;
    int64_t before = now();
    for (; n < count; n++)
        if (!(made[n] = PyObject_Call(function, arguments, NULL)))
            break;
    return freed(made, n, count, before);
}

/* shim(rows, columns, dtype, device type, device index, count): through torch's C shim. */
static PyObject *shim(PyObject *self, PyObject *args)
{
    long long rows, columns;
    int dtype, type, index, count, n = 0;
    PyObject *made[MOST];
    if (!PyArg_ParseTuple(args, "LLiiii", &rows, &columns, &dtype, &type, &index, &count) || too_many(count))
        return NULL;
    const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
    int64_t before = now();
    for (; n < count; n++) {
        Handle handle;
        if (api.empty(2, sizes, strides, dtype, type, index, &handle) || !(made[n] = wrapped(handle)))
            break;
    }
    return freed(made, n, count, before);
}

/* shared(rows, columns, dtype, device type, device index, count): one allocation, and a view of it for each. */
static PyObject *shared(PyObject *self, PyObject *args)
{
    long long rows, columns;
    int dtype, type, index, count, n = 0;
    PyObject *made[MOST];
    Handle base;
    if (!PyArg_ParseTuple(args, "LLiiii", &rows, &columns, &dtype, &type, &index, &count) || too_many(count))
        return NULL;
    const int64_t all[] = {rows * count, columns}, sizes[] = {rows, columns}, strides[] = {columns, 1};
    int64_t before = now();
    if (api.empty(2, all, strides, dtype, type, index, &base)) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor could not be made");
        return NULL;
    }
    for (; n < count; n++) {
        Handle view;
        if (api.reinterpret(base, 2, sizes, strides, n * rows * columns, &view) || !(made[n] = wrapped(view)))
            break;
    }
    api.delete_tensor(base);
    return freed(made, n, count, before);
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, NULL},
    {"generated", generated, METH_VARARGS, NULL},
    {"shim", shim, METH_VARARGS, NULL},
    {"shared", shared, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "pygraph_allocating", NULL, -1, methods};

PyMODINIT_FUNC PyInit_pygraph_allocating(void)
{
    return PyModule_Create(&definition);
}
