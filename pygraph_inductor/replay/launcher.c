/* The fast path in C: one call of a recorded graph, from a list of inputs to the outputs.
 *
 * It does what player.py does for the ordinary call, and nothing else: whatever is out of the ordinary (another shape,
 * a misaligned or overlapping input, another stream, somebody capturing) makes it step aside before anything happened,
 * and the Python path answers. native.py compiles it, resolves the functions it calls, and packs the plan for it.
 *
 * It needs no header but Python's. Outputs are made by the function that generated code calls; otherwise tensors are
 * reached through PyTorch's C shim (torch/csrc/inductor/aoti_torch), whose handles are pointers to at::Tensor, that is,
 * to a place that holds a TensorImpl pointer; a Python tensor has such a place inside, at an offset that native.py finds
 * and checks. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef void *Handle;
typedef int32_t Status; /* 0 is success, for the shim and for the driver */

/* Resolved by native.py, in this order. Those of the CUDA driver are null where there is no device. */
static struct {
    Status (*data_pointer)(Handle, void **);
    Status (*dim)(Handle, int64_t *);
    Status (*sizes)(Handle, int64_t **);
    Status (*strides)(Handle, int64_t **);
    Status (*dtype)(Handle, int32_t *);
    Status (*device_type)(Handle, int32_t *);
    Status (*device_index)(Handle, int32_t *);
    Status (*reinterpret)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
    Status (*delete_tensor)(Handle);
    PyObject *(*wrap)(Handle); /* a Python tensor of the same TensorImpl */
    Status (*current_stream)(int32_t, void **);
    Status (*stream_is_capturing)(void *, int *);
    Status (*current_context)(void **);
    Status (*set_kernel)(void *, void *, void *);
    Status (*set_copy)(void *, void *, void *, void *);
    Status (*set_fill)(void *, void *, void *, void *);
} api;
enum { API_COUNT = 16 };

static Py_ssize_t tensor_offset, keys_offset; /* the latter inside a TensorImpl: where its dispatch keys are */
/* Where a TensorImpl has its StorageImpl and its autograd metadata, and where both have their counts of strong and weak
 * references, the latter in the upper half; negative where native.py did not find them, and then nothing is kept. */
static Py_ssize_t storage_offset, autograd_offset, counts_offset;
static uint64_t lazy_keys; /* of tensors whose memory does not hold what they mean */
static PyTypeObject *tensor_type, *parameter_type;
static PyObject *hooked; /* says whether somebody wants to see tensors that autograd saves */

enum InputKind { INPUT_TENSOR, INPUT_CONSTANT };
enum NodeKind { NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_PYTHON };
enum ReturnKind { RETURN_ALLOCATION, RETURN_INPUT, RETURN_ALLOCATION_VIEW, RETURN_INPUT_VIEW, RETURN_CONSTANT,
                  RETURN_AGAIN };

typedef struct {
    int64_t ndim;
    const int64_t *sizes, *strides;
    int32_t dtype;
} Layout;

typedef struct {
    enum InputKind kind;
    Layout layout;
    int64_t slot; /* -1: none (an empty tensor) */
    PyObject *constant;
} Input;

typedef struct {
    int64_t span, alignment_mask, residue, first_word, word_count;
} Slot;

typedef struct {
    int64_t first, second, distance; /* of slots that share memory, in bytes */
} Overlap;

typedef struct {
    uint64_t *place;
    int64_t addend, node;
} Word;

typedef struct {
    enum NodeKind kind;
    void *handle, *params;
    PyObject *update; /* NODE_PYTHON: a callable */
    int dirty;
} Node;

typedef struct {
    Layout layout;
    PyObject *arguments; /* of `allocate` */
    PyObject *made;      /* this call's */
    int64_t slot;
    int keep; /* only the backward sees it: it may serve again once nobody has it any more */
    PyObject *kept;
    uint64_t address, keys; /* of what is kept: where it is, and its dispatch keys */
} Allocation;

/* Where the time of a call goes. */
enum Phase { PHASE_ACCEPT, PHASE_ALLOCATE, PHASE_TELL, PHASE_LAUNCH, PHASE_WRAP, PHASE_COUNT };

typedef struct {
    enum ReturnKind kind;
    int64_t position, offset;
    Layout layout;
    PyObject *constant;
} Returned;

typedef struct {
    PyObject_HEAD
    PyObject *program, *objects, *known_array;
    Py_buffer known_view;
    int64_t input_count, slot_count, word_count, node_count, allocation_count, returned_count;
    int64_t keep_count;   /* of allocations that may be kept */
    uint64_t kept_stream; /* on which what is kept was used */
    int64_t input_slots, overlap_count; /* the slots of inputs come first */
    Input *inputs;
    Slot *slots;
    Overlap *overlaps;
    Word *words;
    Node *nodes;
    Allocation *allocations;
    Returned *returned;
    uint64_t *known, *now; /* where the graph was told each slot is (0: it has to be told), and where it is */
    int64_t *order, *dirty;
    int returns; /* 0 a bare value, 1 a tuple, 2 a list */
    int is_cuda, closed, in_call;
    int32_t device_type, device_index;
    void *executable, *context;
    uint64_t *last_stream, *busy; /* the pool's: its last stream, and whether somebody records or replays */
    uint64_t alignment_mask;
    PyObject *replay, *acquire, *release, *allocate;
    PyObject *after; /* called with the inputs after the launch, or None */
    PyObject *usual; /* where there is no device: whether the current stream is the usual one, or None */
    uint64_t calls, updates, last_used;
    uint64_t spent[PHASE_COUNT], since; /* ns, while `timed` */
    int timed;
    uint64_t sample_every, sample_at; /* at so many calls it steps aside once, so that Python can look; 0: never */
    int sampled; /* it did, and Python has not asked yet */
} Launcher;

/* ---- one call */

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What happened since the last time belongs to this phase. */
static void account(Launcher *self, enum Phase phase)
{
    if (!self->timed)
        return;
    uint64_t now = nanoseconds();
    self->spent[phase] += now - self->since;
    self->since = now;
}

static Handle handle_of(PyObject *tensor) { return (char *)tensor + tensor_offset; }

static uint64_t keys_of(Handle tensor)
{
    uint64_t keys;
    memcpy(&keys, *(char **)tensor + keys_offset, sizeof keys);
    return keys;
}

static int is_lazy(Handle tensor) { return (keys_of(tensor) & lazy_keys) != 0; }

static int has_layout(Handle tensor, const Layout *layout, int32_t device_type, int32_t device_index)
{
    int64_t ndim, *sizes, *strides;
    int32_t dtype, type, index;
    if (api.dtype(tensor, &dtype) || dtype != layout->dtype || api.dim(tensor, &ndim) || ndim != layout->ndim ||
        api.device_type(tensor, &type) || type != device_type || api.device_index(tensor, &index) ||
        (device_index >= 0 && index != device_index) || api.sizes(tensor, &sizes) || api.strides(tensor, &strides))
        return 0;
    return !memcmp(sizes, layout->sizes, ndim * sizeof *sizes) &&
           !memcmp(strides, layout->strides, ndim * sizeof *strides);
}

static int same_constant(PyObject *value, PyObject *constant)
{
    if (value == constant)
        return 1;
    if (Py_TYPE(value) != Py_TYPE(constant))
        return 0;
    if (PyFloat_CheckExact(value)) { /* by their bits: nan equals itself, 0.0 and -0.0 differ */
        double one = PyFloat_AS_DOUBLE(value), other = PyFloat_AS_DOUBLE(constant);
        return !memcmp(&one, &other, sizeof one);
    }
    if (!PyLong_Check(value))
        return 0;
    int equal = PyObject_RichCompareBool(value, constant, Py_EQ);
    if (equal < 0)
        PyErr_Clear();
    return equal == 1;
}

/* An interrupt is no failure of ours: it stays set, and whoever sees that something failed passes it on. */
static void forget_failure(void)
{
    if (PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
}

static int call_quietly(PyObject *callable, PyObject *argument, int *answer)
{
    PyObject *result = argument ? PyObject_CallOneArg(callable, argument) : PyObject_CallNoArgs(callable);
    if (!result) {
        forget_failure();
        return 0;
    }
    *answer = result == Py_True;
    Py_DECREF(result);
    return 1;
}

/* Whether the inputs are those of this recording; notes where their slots are now. */
static int accepts(Launcher *self, PyObject *list)
{
    if (PyList_GET_SIZE(list) != self->input_count)
        return 0;
    for (int64_t i = 0; i < self->input_count; i++) {
        const Input *input = &self->inputs[i];
        PyObject *value = PyList_GET_ITEM(list, i);
        if (input->kind == INPUT_CONSTANT) {
            if (!same_constant(value, input->constant))
                return 0;
            continue;
        }
        if (Py_TYPE(value) != tensor_type && Py_TYPE(value) != parameter_type)
            return 0;
        Handle tensor = handle_of(value);
        if (is_lazy(tensor) || !has_layout(tensor, &input->layout, self->device_type, self->device_index))
            return 0;
        if (input->slot >= 0) {
            void *address;
            const Slot *slot = &self->slots[input->slot];
            if (api.data_pointer(tensor, &address))
                return 0;
            if (slot->word_count && ((int64_t)address & slot->alignment_mask) != slot->residue)
                return 0;
            self->now[input->slot] = (uint64_t)address;
        }
    }
    return 1;
}

/* Sorts the input slots by address; starts from the order of the last call, so that it is nearly done already. */
static void sort_by_address(Launcher *self)
{
    static const int gaps[] = {301, 132, 57, 23, 10, 4, 1};
    const uint64_t *now = self->now;
    int64_t *order = self->order, count = self->input_slots;
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (int64_t i = gaps[g]; i < count; i++) {
            int64_t slot = order[i], j = i;
            for (; j >= gaps[g] && now[order[j - gaps[g]]] > now[slot]; j -= gaps[g])
                order[j] = order[j - gaps[g]];
            order[j] = slot;
        }
}

/* Whether the inputs alias each other as they did when this was recorded: the pairs of then at the distances of then, and
 * no others. */
static int aliases_as_recorded(Launcher *self)
{
    const uint64_t *now = self->now;
    int64_t count = self->input_slots, found = 0;
    if (!memcmp(now, self->known, count * sizeof *now))
        return 1;
    for (int64_t i = 0; i < self->overlap_count; i++) {
        const Overlap *overlap = &self->overlaps[i];
        if ((int64_t)(now[overlap->second] - now[overlap->first]) != overlap->distance)
            return 0;
    }
    sort_by_address(self);
    for (int64_t i = 0; i < count; i++) {
        uint64_t end = now[self->order[i]] + (uint64_t)self->slots[self->order[i]].span;
        for (int64_t j = i + 1; j < count && now[self->order[j]] < end; j++)
            if (++found > self->overlap_count)
                return 0;
    }
    return found == self->overlap_count;
}

static int on_the_usual_stream(const Launcher *self)
{
    void *context, *stream;
    int capturing;
    if (!self->is_cuda) {
        int usual = 0;
        return self->usual == Py_None || (call_quietly(self->usual, NULL, &usual) && usual);
    }
    return !api.current_context(&context) && context == self->context &&
           !api.current_stream(self->device_index, &stream) && (uint64_t)stream == *self->last_stream &&
           !api.stream_is_capturing(stream, &capturing) && !capturing;
}

static void drop_made(Launcher *self)
{
    for (int64_t i = 0; i < self->allocation_count; i++)
        Py_CLEAR(self->allocations[i].made);
}

/* ---- activations that only the backward sees
 *
 * A training step makes hundreds of them, and drops them when it is over: then the same tensors serve the next step, at
 * addresses that every node knows already. Nobody can tell, because a tensor serves again only if nobody else has it:
 * no reference to the object, to the tensor behind it or to its storage but ours, not even a weak one; and only on the
 * stream that it was used on, as memory would that the allocator gives out again. */

static int is_ours_alone(const char *counted)
{
    uint64_t counts;
    memcpy(&counts, counted + counts_offset, sizeof counts);
    return (counts & ~((uint64_t)1 << 63)) == (((uint64_t)1 << 32) | 1); /* the uppermost bit: it has a Python object */
}

static int has_weak_references(PyObject *object)
{
    return !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) || *PyObject_GET_WEAKREFS_LISTPTR(object);
}

/* Attributes that somebody gave it do not come back; 0 if somebody still has the dictionary of them. */
static int without_attributes(PyObject *object)
{
    PyObject **place = _PyObject_GetDictPtr(object), *attributes = place ? *place : NULL;
    if (!attributes)
        return 1;
    if (Py_REFCNT(attributes) != 1)
        return 0;
    if (PyDict_GET_SIZE(attributes))
        PyDict_Clear(attributes);
    return 1;
}

static int serves_again(const Launcher *self, const Allocation *made)
{
    PyObject *tensor = made->kept;
    void *address;
    if (!tensor || Py_TYPE(tensor) != tensor_type || Py_REFCNT(tensor) != 1 || has_weak_references(tensor))
        return 0;
    const char *impl = *(char **)handle_of(tensor), *storage = *(char **)(impl + storage_offset);
    return is_ours_alone(impl) && is_ours_alone(storage) && !*(void **)(impl + autograd_offset) &&
           keys_of(handle_of(tensor)) == made->keys &&
           has_layout(handle_of(tensor), &made->layout, self->device_type, self->device_index) &&
           !api.data_pointer(handle_of(tensor), &address) && (uint64_t)address == made->address &&
           without_attributes(tensor);
}

/* The end of a tensor may run anything, and that may call, close or empty this very launcher. */
static void drop_kept(Launcher *self)
{
    for (int64_t i = 0; self->allocations && i < self->allocation_count; i++)
        Py_CLEAR(self->allocations[i].kept);
}

/* Whether this call may use what is kept, and keep what it makes. */
static int may_keep(Launcher *self)
{
    int seen = 1;
    if (!self->keep_count)
        return 0;
    if (*self->last_stream != self->kept_stream)
        drop_kept(self);
    self->kept_stream = *self->last_stream;
    return call_quietly(hooked, NULL, &seen) && !seen;
}

/* A tensor as generated code makes it: without the dispatcher, which the C shim goes through, and as a Python object at
 * once. It is on torch's current device, so it is asked whether that is ours. */
static int make(Launcher *self, Allocation *made)
{
    void *address;
    int32_t index;
    made->made = PyObject_Call(self->allocate, made->arguments, NULL);
    if (!made->made) {
        PyErr_Clear();
        drop_kept(self); /* no memory: the Python path makes all of them */
        return 0;
    }
    if (Py_TYPE(made->made) != tensor_type)
        return 0;
    Handle tensor = handle_of(made->made);
    if (self->device_index >= 0 && (api.device_index(tensor, &index) || index != self->device_index))
        return 0;
    if (made->slot < 0)
        return 1;
    if (api.data_pointer(tensor, &address) || ((uint64_t)address & self->alignment_mask))
        return 0;
    self->now[made->slot] = (uint64_t)address;
    return 1;
}

static int allocate_outputs(Launcher *self, int keeps)
{
    for (int64_t i = 0; i < self->allocation_count; i++) {
        Allocation *made = &self->allocations[i];
        if (keeps && made->keep && serves_again(self, made)) {
            made->made = Py_NewRef(made->kept);
            self->now[made->slot] = made->address;
            continue;
        }
        Py_CLEAR(made->kept);
        if (!make(self, made)) {
            drop_made(self);
            return 0;
        }
    }
    return 1;
}

static Status update_node(const Launcher *self, const Node *node)
{
    switch (node->kind) {
    case NODE_KERNEL:
        return api.set_kernel(self->executable, node->handle, node->params);
    case NODE_COPY:
        return api.set_copy(self->executable, node->handle, node->params, self->context);
    case NODE_FILL:
        return api.set_fill(self->executable, node->handle, node->params, self->context);
    default: {
        PyObject *done = PyObject_CallNoArgs(node->update);
        if (!done) {
            forget_failure();
            return 1;
        }
        Py_DECREF(done);
        return 0;
    }
    }
}

/* Rewrites the words of slots that moved and updates their nodes, each once. On failure every slot has to be told. */
static int tell(Launcher *self)
{
    int64_t dirty_count = 0;
    Status status = 0;
    for (int64_t s = 0; s < self->slot_count; s++) {
        if (self->now[s] == self->known[s])
            continue;
        const Slot *slot = &self->slots[s];
        self->known[s] = 0;
        for (int64_t w = slot->first_word; w < slot->first_word + slot->word_count; w++) {
            const Word *word = &self->words[w];
            uint64_t value = self->now[s] + (uint64_t)word->addend;
            memcpy(word->place, &value, sizeof value);
            if (!self->nodes[word->node].dirty) {
                self->nodes[word->node].dirty = 1;
                self->dirty[dirty_count++] = word->node;
            }
        }
    }
    for (int64_t i = 0; i < dirty_count; i++) {
        Node *node = &self->nodes[self->dirty[i]];
        node->dirty = 0;
        if (!status)
            status = update_node(self, node);
    }
    if (status) {
        memset(self->known, 0, self->slot_count * sizeof *self->known);
        return 0;
    }
    memcpy(self->known, self->now, self->slot_count * sizeof *self->known);
    self->updates += dirty_count;
    return 1;
}

/* A view of an output or of an input; the former is of nothing that is kept. */
static PyObject *view_for(Launcher *self, const Returned *entry, PyObject *list)
{
    PyObject *base = entry->kind == RETURN_INPUT_VIEW ? PyList_GET_ITEM(list, entry->position)
                                                      : self->allocations[entry->position].made;
    Handle handle;
    if (api.reinterpret(handle_of(base), entry->layout.ndim, entry->layout.sizes, entry->layout.strides, entry->offset,
                        &handle)) {
        PyErr_SetString(PyExc_RuntimeError, "a view of an output could not be made");
        return NULL;
    }
    PyObject *view = api.wrap(handle);
    api.delete_tensor(handle);
    return view;
}

/* Keeps what may serve again; it is the caller's as well. */
static void keep_made(Launcher *self)
{
    for (int64_t i = 0; i < self->allocation_count; i++) {
        Allocation *made = &self->allocations[i];
        if (made->keep && !made->kept) {
            made->kept = Py_NewRef(made->made);
            made->address = self->now[made->slot];
            made->keys = keys_of(handle_of(made->made));
        }
    }
}

static PyObject *results(Launcher *self, PyObject *list)
{
    PyObject *result = self->returns == 1 ? PyTuple_New(self->returned_count) : PyList_New(self->returned_count);
    for (int64_t i = 0; result && i < self->returned_count; i++) {
        const Returned *entry = &self->returned[i];
        PyObject *value;
        switch (entry->kind) {
        case RETURN_ALLOCATION:
            value = Py_NewRef(self->allocations[entry->position].made);
            break;
        case RETURN_INPUT:
            value = Py_NewRef(PyList_GET_ITEM(list, entry->position));
            break;
        case RETURN_CONSTANT:
            value = Py_NewRef(entry->constant);
            break;
        case RETURN_AGAIN:
            value = Py_NewRef(self->returns == 1 ? PyTuple_GET_ITEM(result, entry->position)
                                                 : PyList_GET_ITEM(result, entry->position));
            break;
        default:
            value = view_for(self, entry, list);
        }
        if (!value)
            Py_CLEAR(result);
        else if (self->returns == 1)
            PyTuple_SET_ITEM(result, i, value);
        else
            PyList_SET_ITEM(result, i, value);
    }
    if (result && self->returns == 0) {
        PyObject *bare = PyList_GET_ITEM(result, 0);
        Py_INCREF(bare);
        Py_DECREF(result);
        result = bare;
    }
    return result;
}

static PyObject *launch(Launcher *self, PyObject *list, int keeps)
{
    PyObject *done = PyObject_CallNoArgs(self->replay);
    if (!done)
        return NULL;
    Py_DECREF(done);
    if (self->after != Py_None) {
        done = PyObject_CallOneArg(self->after, list);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    account(self, PHASE_LAUNCH);
    PyObject *result = results(self, list);
    if (result) {
        if (keeps)
            keep_made(self);
        drop_made(self); /* a returned tensor has no hidden references */
        self->calls++;
        self->last_used = nanoseconds();
        PyList_SetSlice(list, 0, PY_SSIZE_T_MAX, NULL);
    }
    account(self, PHASE_WRAP);
    return result;
}

static void unlock(Launcher *self)
{
    PyObject *type, *value, *traceback;
    int ignored;
    PyErr_Fetch(&type, &value, &traceback);
    call_quietly(self->release, NULL, &ignored);
    PyErr_Restore(type, value, traceback);
}

/* 1 and a result; 0: not for us, nothing happened; -1: an exception after the launch, or an interrupt. */
static int try_launch(Launcher *self, PyObject *list, PyObject **result)
{
    int locked = 0, keeps = 0;
    if (self->timed)
        self->since = nanoseconds();
    if (self->sample_every && self->calls >= self->sample_at) {
        self->sample_at = self->calls + self->sample_every;
        self->sampled = 1;
        return 0;
    }
    /* Another thread may be between its update and its launch: the launch gives up the interpreter's lock. */
    if (self->closed || !on_the_usual_stream(self) || !call_quietly(self->acquire, Py_False, &locked) || !locked)
        return PyErr_Occurred() ? -1 : 0;
    if (*self->busy) { /* by this very thread: a finalizer or a signal handler called a compiled function */
        unlock(self);
        return 0;
    }
    *self->busy = self->in_call = 1;
    int ready = !self->closed && accepts(self, list) && aliases_as_recorded(self);
    account(self, PHASE_ACCEPT);
    if (ready) {
        keeps = may_keep(self);
        ready = !PyErr_Occurred() && allocate_outputs(self, keeps);
        account(self, PHASE_ALLOCATE);
    }
    if (ready && self->closed) { /* by the end of what was kept: its graph may be gone */
        drop_made(self);
        ready = 0;
    }
    if (ready && !tell(self)) {
        drop_made(self);
        ready = 0;
    }
    account(self, PHASE_TELL);
    *result = ready ? launch(self, list, keeps) : NULL;
    if (ready && !*result)
        drop_made(self);
    self->in_call = 0;
    if (self->closed)
        drop_kept(self);
    *self->busy = 0;
    unlock(self);
    return *result ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* ---- a launcher from its program: a stream of int64 that native.py writes */

typedef struct {
    const int64_t *next, *end;
    PyObject *objects;
    int missed; /* it ended too early */
} Reader;

static int64_t take(Reader *reader)
{
    if (reader->next < reader->end)
        return *reader->next++;
    reader->missed = 1;
    return 0;
}

static PyObject *take_object(Reader *reader)
{
    int64_t index = take(reader);
    return index >= 0 && index < PyTuple_GET_SIZE(reader->objects) ? PyTuple_GET_ITEM(reader->objects, index) : Py_None;
}

static Layout take_layout(Reader *reader)
{
    Layout layout = {take(reader), NULL, NULL, 0};
    layout.dtype = (int32_t)take(reader);
    layout.sizes = reader->next;
    layout.strides = reader->next + layout.ndim;
    reader->next += 2 * layout.ndim;
    return layout;
}

static void *zeroed(int64_t count, size_t size) { return PyMem_Calloc(count > 0 ? (size_t)count : 1, size); }

static int read_program(Launcher *self, Reader *reader)
{
    self->device_type = (int32_t)take(reader);
    self->device_index = (int32_t)take(reader);
    self->is_cuda = (int)take(reader);
    self->alignment_mask = (uint64_t)take(reader) - 1;
    self->returns = (int)take(reader);
    self->executable = (void *)take(reader);
    self->context = (void *)take(reader);
    self->last_stream = (uint64_t *)take(reader);
    self->busy = (uint64_t *)take(reader);
    self->replay = take_object(reader);
    self->acquire = take_object(reader);
    self->release = take_object(reader);
    self->allocate = take_object(reader);
    self->after = take_object(reader);
    self->usual = take_object(reader);
    self->input_count = take(reader);
    self->input_slots = take(reader);
    self->overlap_count = take(reader);
    self->slot_count = take(reader);
    self->word_count = take(reader);
    self->node_count = take(reader);
    self->allocation_count = take(reader);
    self->returned_count = take(reader);
    self->inputs = zeroed(self->input_count, sizeof *self->inputs);
    self->slots = zeroed(self->slot_count, sizeof *self->slots);
    self->overlaps = zeroed(self->overlap_count, sizeof *self->overlaps);
    self->words = zeroed(self->word_count, sizeof *self->words);
    self->nodes = zeroed(self->node_count, sizeof *self->nodes);
    self->allocations = zeroed(self->allocation_count, sizeof *self->allocations);
    self->returned = zeroed(self->returned_count, sizeof *self->returned);
    self->now = zeroed(self->slot_count, sizeof *self->now);
    self->order = zeroed(self->input_slots, sizeof *self->order);
    self->dirty = zeroed(self->node_count, sizeof *self->dirty);
    if (!self->inputs || !self->slots || !self->overlaps || !self->words || !self->nodes || !self->allocations || !self->returned ||
        !self->now || !self->order || !self->dirty)
        return 0;
    for (int64_t i = 0; i < self->input_count; i++) {
        Input *input = &self->inputs[i];
        input->kind = (enum InputKind)take(reader);
        if (input->kind == INPUT_CONSTANT) {
            input->constant = take_object(reader);
        } else {
            input->slot = take(reader);
            input->layout = take_layout(reader);
        }
    }
    for (int64_t i = 0; i < self->slot_count; i++) {
        Slot *slot = &self->slots[i];
        slot->span = take(reader);
        slot->alignment_mask = take(reader);
        slot->residue = take(reader);
        slot->first_word = take(reader);
        slot->word_count = take(reader);
    }
    for (int64_t i = 0; i < self->overlap_count; i++) {
        Overlap *overlap = &self->overlaps[i];
        overlap->first = take(reader);
        overlap->second = take(reader);
        overlap->distance = take(reader);
    }
    for (int64_t i = 0; i < self->word_count; i++) {
        self->words[i].place = (uint64_t *)take(reader);
        self->words[i].addend = take(reader);
        self->words[i].node = take(reader);
    }
    for (int64_t i = 0; i < self->node_count; i++) {
        Node *node = &self->nodes[i];
        node->kind = (enum NodeKind)take(reader);
        node->handle = (void *)take(reader);
        node->params = (void *)take(reader);
        node->update = take_object(reader);
    }
    for (int64_t i = 0; i < self->allocation_count; i++) {
        self->allocations[i].slot = take(reader);
        self->allocations[i].keep = take(reader) && counts_offset >= 0 && self->allocations[i].slot >= 0;
        self->allocations[i].arguments = take_object(reader);
        self->allocations[i].layout = take_layout(reader);
        self->keep_count += self->allocations[i].keep;
    }
    for (int64_t i = 0; i < self->returned_count; i++) {
        Returned *entry = &self->returned[i];
        entry->kind = (enum ReturnKind)take(reader);
        entry->position = take(reader);
        entry->offset = take(reader);
        entry->constant = take_object(reader);
        entry->layout = take_layout(reader);
    }
    for (int64_t i = 0; i < self->input_slots; i++)
        self->order[i] = i;
    return reader->next == reader->end && !reader->missed;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *program, *objects, *known;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!O!O:Launcher", &PyBytes_Type, &program, &PyTuple_Type, &objects, &known))
        return NULL;
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->program = Py_NewRef(program); /* layouts point into it */
    self->objects = Py_NewRef(objects);
    const int64_t *start = (const int64_t *)PyBytes_AS_STRING(program);
    Reader reader = {start, start + PyBytes_GET_SIZE(program) / (Py_ssize_t)sizeof(int64_t), objects, 0};
    if (!read_program(self, &reader)) {
        PyErr_SetString(PyExc_ValueError, "the program of a launcher does not read to its end");
        Py_DECREF(self);
        return NULL;
    }
    if (PyObject_GetBuffer(known, &self->known_view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->known_array = Py_NewRef(known);
    self->known = self->known_view.buf;
    if (self->known_view.len < (Py_ssize_t)(self->slot_count * sizeof *self->known)) {
        PyErr_SetString(PyExc_ValueError, "a launcher needs one known address per slot");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int launcher_traverse(Launcher *self, visitproc visit, void *arg)
{
    Py_VISIT(self->objects);
    return 0;
}

static int launcher_clear(Launcher *self)
{
    self->closed = 1; /* what it calls is gone from here on */
    drop_kept(self);
    Py_CLEAR(self->objects);
    return 0;
}

static void launcher_dealloc(Launcher *self)
{
    PyObject_GC_UnTrack(self);
    launcher_clear(self);
    if (self->known_array) {
        PyBuffer_Release(&self->known_view);
        Py_CLEAR(self->known_array);
    }
    Py_CLEAR(self->program);
    void *memory[] = {self->inputs, self->slots, self->overlaps, self->words, self->nodes, self->allocations,
                      self->returned, self->now, self->order, self->dirty};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        PyMem_Free(memory[i]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *launcher_forget(Launcher *self, PyObject *unused)
{
    (void)unused;
    if (!self->in_call) /* else it is being handed out */
        drop_kept(self);
    Py_RETURN_NONE;
}

static PyObject *launcher_close(Launcher *self, PyObject *unused)
{
    self->closed = 1;
    return launcher_forget(self, unused);
}

static PyObject *launcher_counts(Launcher *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("KKK", self->calls, self->updates, self->last_used);
}

static PyObject *launcher_time(Launcher *self, PyObject *on)
{
    self->timed = PyObject_IsTrue(on);
    memset(self->spent, 0, sizeof self->spent);
    Py_RETURN_NONE;
}

static PyObject *launcher_spent(Launcher *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("{sKsKsKsKsK}", "accept", self->spent[PHASE_ACCEPT], "allocate", self->spent[PHASE_ALLOCATE],
                         "tell", self->spent[PHASE_TELL], "launch", self->spent[PHASE_LAUNCH], "wrap",
                         self->spent[PHASE_WRAP]);
}

static PyObject *launcher_sample(Launcher *self, PyObject *every)
{
    unsigned long long count = PyLong_AsUnsignedLongLong(every);
    if (PyErr_Occurred())
        return NULL;
    self->sample_every = count;
    self->sample_at = self->calls + count;
    Py_RETURN_NONE;
}

static PyObject *launcher_sampled(Launcher *self, PyObject *unused)
{
    (void)unused;
    int sampled = self->sampled;
    self->sampled = 0;
    return PyBool_FromLong(sampled);
}

static PyMethodDef launcher_methods[] = {
    {"sampled", (PyCFunction)launcher_sampled, METH_NOARGS, "Whether it stepped aside for that since this was last asked."},
    {"time", (PyCFunction)launcher_time, METH_O, "Start or end measuring where the time of calls goes."},
    {"spent", (PyCFunction)launcher_spent, METH_NOARGS, "Nanoseconds by phase since measuring began."},
    {"sample", (PyCFunction)launcher_sample, METH_O, "Step aside once in so many calls; 0: never."},
    {"forget", (PyCFunction)launcher_forget, METH_NOARGS, "Drop what is kept for the next call."},
    {"close", (PyCFunction)launcher_close, METH_NOARGS, "Answer no call from now on."},
    {"counts", (PyCFunction)launcher_counts, METH_NOARGS, "Calls answered, nodes updated, monotonic time of the last call in ns."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject launcher_object = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pygraph_launcher.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Launcher(program, objects, known): answers the calls of one recording.",
    .tp_new = launcher_new,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_methods = launcher_methods,
};

/* ---- the callable in front: the launchers of one function, most recently used first, and the Python path */

enum { FRONT_LIMIT = 8 };

typedef struct {
    PyObject_HEAD
    PyObject *slow;
    Launcher *launchers[FRONT_LIMIT];
    int count;
    vectorcallfunc vectorcall;
    PyObject *weak_references;
} Front;

static PyObject *front_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *self = (Front *)object;
    if (PyVectorcall_NARGS(flags) == 1 && !names && PyList_CheckExact(args[0])) {
        for (int i = 0; i < self->count; i++) {
            PyObject *result;
            Launcher *launcher = self->launchers[i];
            Py_INCREF(launcher); /* the launch gives up the interpreter's lock: another thread may drop it here */
            int outcome = try_launch(launcher, args[0], &result);
            if (outcome > 0 && i && i < self->count && self->launchers[i] == launcher) {
                memmove(self->launchers + 1, self->launchers, i * sizeof *self->launchers);
                self->launchers[0] = launcher;
            }
            Py_DECREF(launcher);
            if (outcome)
                return outcome > 0 ? result : NULL;
        }
    }
    return PyObject_Vectorcall(self->slow, args, flags, names);
}

static PyObject *front_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *slow;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O:Front", &slow))
        return NULL;
    Front *self = (Front *)type->tp_alloc(type, 0);
    if (self) {
        self->slow = Py_NewRef(slow);
        self->vectorcall = front_call;
    }
    return (PyObject *)self;
}

static int front_traverse(Front *self, visitproc visit, void *arg)
{
    Py_VISIT(self->slow);
    for (int i = 0; i < self->count; i++)
        Py_VISIT(self->launchers[i]);
    return 0;
}

static int front_clear(Front *self)
{
    while (self->count) {
        Launcher *last = self->launchers[--self->count];
        Py_DECREF(last);
    }
    Py_CLEAR(self->slow);
    return 0;
}

static void front_dealloc(Front *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak_references)
        PyObject_ClearWeakRefs((PyObject *)self);
    front_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *front_add(Front *self, PyObject *launcher)
{
    if (!PyObject_TypeCheck(launcher, &launcher_object))
        return PyErr_Format(PyExc_TypeError, "add() takes a Launcher");
    Launcher *oldest = self->count == FRONT_LIMIT ? self->launchers[--self->count] : NULL;
    memmove(self->launchers + 1, self->launchers, self->count * sizeof *self->launchers);
    self->launchers[0] = (Launcher *)Py_NewRef(launcher);
    self->count++;
    Py_XDECREF(oldest); /* only now: it may run anything, and another add() */
    Py_RETURN_NONE;
}

static PyObject *front_remove(Front *self, PyObject *launcher)
{
    for (int i = 0; i < self->count; i++)
        if ((PyObject *)self->launchers[i] == launcher) {
            self->count--;
            memmove(self->launchers + i, self->launchers + i + 1, (self->count - i) * sizeof *self->launchers);
            Py_DECREF(launcher);
            break;
        }
    Py_RETURN_NONE;
}

static PyObject *front_holds(Front *self, PyObject *launcher)
{
    for (int i = 0; i < self->count; i++)
        if ((PyObject *)self->launchers[i] == launcher)
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyMethodDef front_methods[] = {
    {"add", (PyCFunction)front_add, METH_O, "Try this launcher first; beyond eight the oldest is left to slow calls."},
    {"remove", (PyCFunction)front_remove, METH_O, "Forget a launcher."},
    {"holds", (PyCFunction)front_holds, METH_O, "Whether a launcher is tried."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject front_object = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pygraph_launcher.Front",
    .tp_basicsize = sizeof(Front),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Front(slow): calls go to the first launcher that takes them, else to slow.",
    .tp_new = front_new,
    .tp_dealloc = (destructor)front_dealloc,
    .tp_traverse = (traverseproc)front_traverse,
    .tp_clear = (inquiry)front_clear,
    .tp_methods = front_methods,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Front, vectorcall),
    .tp_weaklistoffset = offsetof(Front, weak_references),
};

/* ---- the module */

static PyObject *configure(PyObject *module, PyObject *args)
{
    PyObject *functions, *tensor, *parameter, *hooks;
    (void)module;
    unsigned long long lazy;
    if (!PyArg_ParseTuple(args, "O!nnnnnKOOO", &PyTuple_Type, &functions, &tensor_offset, &keys_offset, &storage_offset,
                          &autograd_offset, &counts_offset, &lazy, &tensor, &parameter, &hooks))
        return NULL;
    lazy_keys = lazy;
    if (PyTuple_GET_SIZE(functions) != API_COUNT)
        return PyErr_Format(PyExc_ValueError, "configure() takes %d functions", API_COUNT);
    void **targets = (void **)&api;
    for (int i = 0; i < API_COUNT; i++) {
        targets[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(functions, i));
        if (!targets[i] && PyErr_Occurred())
            return NULL;
    }
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    parameter_type = (PyTypeObject *)Py_NewRef(parameter);
    hooked = Py_NewRef(hooks);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"configure", configure, METH_VARARGS, 
     "configure(functions, offsets of tensor, keys, storage, autograd and counts, lazy_keys, Tensor, Parameter, hooked)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "pygraph_launcher", .m_size = -1, .m_methods = module_methods};

PyMODINIT_FUNC PyInit_pygraph_launcher(void)
{
    if (PyType_Ready(&launcher_object) < 0 || PyType_Ready(&front_object) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (!module)
        return NULL;
    if (PyModule_AddObjectRef(module, "Launcher", (PyObject *)&launcher_object) < 0 ||
        PyModule_AddObjectRef(module, "Front", (PyObject *)&front_object) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
