/* attend in C99: attention, layers and files, for C and for every language that can call C.
 *
 * This is the one interface with a stable ABI, from version 1.0 on: a program that was compiled
 * against an older header runs with a newer library of the same major version.
 *
 * Results.  Every function returns a status, but for those that cannot fail. On failure nothing is
 * changed and no result is written (ATTEND_INTERRUPTED: results may be there in part), and
 * attend_last_error() says what was wrong. No C++ exception leaves, nothing ends the process,
 * nothing is printed.
 *
 * Handles.  A new handle is returned through a function's last argument. The caller owns it and
 * calls the destroy function of its kind once; destroying NULL does nothing. Strings, and shapes
 * and data of views, that come from a handle live as long as it does.
 *
 * Structs.  The first field is struct_size, the sizeof that the caller was compiled with, and every
 * other field's zero is its default: `attend_view x = ATTEND_INIT(attend_view);`. NULL in place of
 * options is all defaults. Later versions add fields at the end only. A smaller struct_size, a
 * multiple of 8, leaves defaults in the rest; zero and one larger than the library's are refused.
 * Fields called reserved are zero. A flag is true if it is not zero.
 *
 * Arguments.  NULL is refused unless "NULL: ..." says what it means. What a view or an option shows
 * must live until the call returns. A `context` NULL is the default one.
 *
 * Threads.  Functions may be called from any number of threads, with the same handles too, as long
 * as nobody changes them: const handles are only read. No thread may be cancelled inside a call.
 *
 * The formulas, the shapes and the rules are those of the C++ headers, which each part names. */
#pragma once

/* NOLINTBEGIN(modernize-*): C */
#include <attend/version.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status: error.h ------------------------------------------------------------------------ */

typedef int32_t attend_status;
enum {
  ATTEND_OK = 0,
  ATTEND_INVALID_ARGUMENT = 1, /* an argument breaks a rule */
  ATTEND_UNSUPPORTED = 2,      /* the arguments are valid, but no kernel supports them */
  ATTEND_OUT_OF_MEMORY = 3,
  ATTEND_FILE_ERROR = 4,     /* a file cannot be read or written, or holds something else */
  ATTEND_DEVICE_ERROR = 5,   /* a device reported a failure */
  ATTEND_INTERNAL_ERROR = 6, /* anything else: a defect of the library, or a callback that threw */
  ATTEND_INTERRUPTED = 7     /* the context's `interrupt` said so; results may be there in part */
};

/* The version of the library that was linked, "major.minor.patch"; compare with ATTEND_VERSION. */
ATTEND_API const char* attend_version(void);
/* "invalid_argument"; "unknown status" for a number that is none. */
ATTEND_API const char* attend_status_name(attend_status status);
/* What was wrong in this thread's last failing call, until its next failing one; "" if none. */
ATTEND_API const char* attend_last_error(void);

/* ---- tensors: dtype.h, tensor.h ------------------------------------------------------------- */

enum {
  ATTEND_F32 = 0,
  ATTEND_F64 = 1,
  ATTEND_BF16 = 2,
  ATTEND_F16 = 3,
  ATTEND_I64 = 4,
  ATTEND_I32 = 5,
  ATTEND_I8 = 6,
  ATTEND_U8 = 7,
  ATTEND_BOOL = 8
};                                        /* dtype */
enum { ATTEND_CPU = 0, ATTEND_CUDA = 1 }; /* device_kind */
enum { ATTEND_MAX_RANK = 8 };

ATTEND_API const char* attend_dtype_name(int32_t dtype); /* "f32" */
ATTEND_API attend_status attend_dtype_size(int32_t dtype, int64_t* bytes);

/* Memory that somebody else owns, read or written as the function says. A view that the library
 * fills in needs its struct_size only. For a missing tensor it gets data and shape NULL, for a
 * row-major one strides NULL. */
typedef struct attend_view {
  size_t struct_size;
  void* data;
  const int64_t* shape;
  const int64_t* strides; /* in elements, any; NULL: row-major */
  int32_t rank;           /* sizes in shape and strides */
  int32_t dtype;
  int32_t device_kind;
  int32_t device_index;
} attend_view;

/* A contiguous tensor that owns its host memory. */
typedef struct attend_tensor attend_tensor;
ATTEND_API attend_status attend_tensor_create(int32_t dtype, int32_t rank, const int64_t* shape,
                                              attend_tensor** made); /* zeros */
ATTEND_API attend_status attend_tensor_copy(const attend_view* view, attend_tensor** made);
ATTEND_API attend_status attend_tensor_view(attend_tensor* tensor, attend_view* view);
ATTEND_API void attend_tensor_destroy(attend_tensor* tensor);

/* ---- contexts and kernels: context.h -------------------------------------------------------- */

typedef void (*attend_body)(void* argument, int32_t index);

typedef struct attend_context_options {
  size_t struct_size;
  const char* kernels; /* "forward:reference.forward,..."; NULL or "": the planner chooses */
  /* Memory for workspaces and for the tensors that calls and layers return: both or none. allocate
     returns NULL when there is none. A tensor may outlive the context, so deallocate is called
     until the last of them is destroyed; user must live as long. */
  void* (*allocate)(void* user, size_t bytes, size_t alignment);
  void (*deallocate)(void* user, void* memory, size_t bytes);
  /* Calls body(argument, 0) ... body(argument, n - 1) and returns when all are done. */
  void (*parallel_for)(void* user, int32_t n, attend_body body, void* argument);
  void* user;      /* handed to the callbacks, which must not jump out (longjmp) */
  int32_t threads; /* 0: ATTEND_THREADS, else as many as the calling thread may run on */
  int32_t reserved;
  /* Asked now and then while a call runs, by the thread that made it: not 0 ends the call. */
  int32_t (*interrupt)(void* user);
} attend_context_options;

typedef struct attend_context attend_context;
ATTEND_API attend_status attend_context_create(const attend_context_options* options,
                                               attend_context** made);
ATTEND_API void attend_context_destroy(attend_context* context);
ATTEND_API attend_status attend_context_threads(attend_context* context, int32_t* threads);

/* The kernel table, operation by operation, the best first. Each result may be NULL; the strings
 * are never freed. */
ATTEND_API attend_status attend_kernel_count(int64_t* count);
ATTEND_API attend_status attend_kernel_at(int64_t index, const char** name, const char** operation,
                                          int32_t* only_if_forced);

/* ---- attention: options.h, attention.h ------------------------------------------------------ */

/* Tensors: NULL is none. A number with a has_ flag is used only if the flag is set; otherwise it
 * must be 0. */
typedef struct attend_attention_options {
  size_t struct_size;
  double scale; /* with has_scale; else 1 / sqrt(d) */
  double softcap;
  int32_t has_scale;
  int32_t bias_before_softcap;
  int32_t causal;
  int32_t has_window_left; /* 0: unlimited */
  int32_t has_window_right;
  int32_t has_query_offset;
  int64_t window_left;
  int64_t window_right;
  int64_t query_offset;             /* one for all batch elements, with has_query_offset */
  const attend_view* query_offsets; /* or one each */
  const attend_view* mask;
  const attend_view* bias;
  const attend_view* alibi;
  const attend_view* sinks;
  const attend_view* blocks_visible;
  int64_t blocks_query_size;
  int64_t blocks_key_size;
  const attend_view* key_lengths;
  const attend_view* cu_seqlens_q;
  const attend_view* cu_seqlens_k;
  const attend_view* block_table;
  double dropout_p;
  uint64_t dropout_seed;
  uint32_t dropout_offset;
  int32_t has_key_offset;
  int64_t dropout_origin_b;
  int64_t dropout_origin_h;
  int64_t dropout_origin_i;
  int64_t dropout_origin_j;
  int64_t dropout_origin_heads;
  int64_t key_offset; /* where key 0 stands, with has_key_offset; else 0 */
  int32_t has_max_q;
  int32_t has_max_k;
  int64_t max_q; /* packed: queries of the longest sequence or more; else as found */
  int64_t max_k;
  const attend_view* k_scales;
  const attend_view* v_scales;
} attend_attention_options;
#ifdef __cplusplus /* The size may grow, offsets may not change, and there are no holes. */
static_assert(sizeof(attend_attention_options) == 280, "the ABI of 1.0, and what came since");
static_assert(offsetof(attend_attention_options, window_left) == 48, "the ABI of 1.0");
static_assert(offsetof(attend_attention_options, dropout_p) == 168, "the ABI of 1.0");
#endif

enum { ATTEND_SCORES_MASKED = 0, ATTEND_SCORES_RAW = 1, ATTEND_SCORES_SOFTCAPPED = 2 }; /* stage */

/* What is written besides `out`: NULL is not wanted. */
typedef struct attend_attention_outputs {
  size_t struct_size;
  const attend_view* lse;
  const attend_view* weights;
  const attend_view* scores;
  int64_t* visited_blocks;
  int32_t stage; /* of the scores */
  int32_t reserved;
  /* The query heads whose weights are written, in this order; NULL and 0: all. */
  const int64_t* weight_heads;
  int64_t weight_heads_count;
} attend_attention_outputs;

/* What a backward pass reads: what attention was given and wrote, and the loss's gradient there. */
typedef struct attend_backward_inputs {
  size_t struct_size;
  const attend_view* q;
  const attend_view* k;
  const attend_view* v;
  const attend_view* out;
  const attend_view* lse;
  const attend_view* dout;
  const attend_view* dlse; /* NULL: the loss does not depend on lse */
} attend_backward_inputs;

/* What it writes: NULL is not wanted. */
typedef struct attend_attention_gradients {
  size_t struct_size;
  const attend_view* dq;
  const attend_view* dk;
  const attend_view* dv;
  const attend_view* dbias;
  const attend_view* dsinks;
  const attend_view* dalibi;
} attend_attention_gradients;

/* out = softmax(scale * q . k^T + ...) . v, into memory of the caller. */
ATTEND_API attend_status attend_attention(const attend_view* q, const attend_view* k,
                                          const attend_view* v, const attend_view* out,
                                          const attend_attention_options* options,
                                          const attend_attention_outputs* outputs,
                                          attend_context* context);
/* The shape of `weights` and `scores`: four sizes. */
ATTEND_API attend_status attend_weights_shape(const attend_view* q, const attend_view* k,
                                              const attend_view* v,
                                              const attend_attention_options* options,
                                              int64_t* shape);
/* The options are those of the forward call. */
ATTEND_API attend_status attend_attention_backward(const attend_backward_inputs* inputs,
                                                   const attend_attention_options* options,
                                                   const attend_attention_gradients* gradients,
                                                   attend_context* context);
/* Adds these keys to a partial state, f64 [batch, heads, queries, dv + 4]. Zeros are an empty one.
 */
ATTEND_API attend_status attend_attention_partial(const attend_view* q, const attend_view* k,
                                                  const attend_view* v, const attend_view* state,
                                                  const attend_attention_options* options,
                                                  attend_context* context);
/* Joins `parts` partial states over disjoint keys, in their order, into another one. */
ATTEND_API attend_status attend_merge_partial(int64_t parts, const attend_view* const* states,
                                              const attend_view* state, attend_context* context);
/* The same into the result: out, and lse if it is not NULL. */
ATTEND_API attend_status attend_finish_partial(int64_t parts, const attend_view* const* states,
                                               const attend_view* out, const attend_view* lse,
                                               attend_context* context);
/* Joins `parts` results over disjoint keys: o[n] and lse[n] of each. lse_out NULL: not wanted. */
ATTEND_API attend_status attend_merge(int64_t parts, const attend_view* const* o,
                                      const attend_view* const* lse, const attend_view* out,
                                      const attend_view* lse_out, attend_context* context);

/* ---- plans: plan.h. The context must outlive them. ------------------------------------------ */

typedef struct attend_plan attend_plan;
/* kernel NULL or "": the planner chooses. */
ATTEND_API attend_status attend_plan_attention(const attend_view* q, const attend_view* k,
                                               const attend_view* v, const attend_view* out,
                                               const attend_attention_options* options,
                                               const attend_attention_outputs* outputs,
                                               const char* kernel, attend_context* context,
                                               attend_plan** made);
ATTEND_API attend_status attend_plan_attention_backward(const attend_backward_inputs* inputs,
                                                        const attend_attention_options* options,
                                                        const attend_attention_gradients* gradients,
                                                        const char* kernel, attend_context* context,
                                                        attend_plan** made);
ATTEND_API attend_status attend_plan_run(const attend_plan* plan, const attend_view* q,
                                         const attend_view* k, const attend_view* v,
                                         const attend_view* out,
                                         const attend_attention_options* options,
                                         const attend_attention_outputs* outputs);
ATTEND_API attend_status attend_plan_run_backward(const attend_plan* plan,
                                                  const attend_backward_inputs* inputs,
                                                  const attend_attention_options* options,
                                                  const attend_attention_gradients* gradients);
/* Which kernel, what was decided and why, and the bytes of workspace. Each result may be NULL. */
ATTEND_API attend_status attend_plan_describe(const attend_plan* plan, const char** kernel,
                                              const char** description, int64_t* workspace_bytes);
ATTEND_API void attend_plan_destroy(attend_plan* plan);

/* ---- files: io.h. Paths are bytes, as the system has them; names and metadata are UTF-8. ----- */

ATTEND_API attend_status attend_load_npy(const char* path, attend_tensor** made);
ATTEND_API attend_status attend_save_npy(const char* path, const attend_view* tensor);

/* What a safetensors file holds. The `find` functions give invalid_argument for a name that is not
 * there, and the error lists those that are. In the `at` functions each result may be NULL. */
typedef struct attend_tensor_file attend_tensor_file;
ATTEND_API attend_status attend_load_safetensors(const char* path, attend_tensor_file** made);
/* `tensors` many names and views, `entries` many keys and values of metadata. A list of none may be
 * NULL. */
ATTEND_API attend_status attend_save_safetensors(const char* path, int64_t tensors,
                                                 const char* const* names,
                                                 const attend_view* const* views, int64_t entries,
                                                 const char* const* keys,
                                                 const char* const* values);
ATTEND_API attend_status attend_tensor_file_count(const attend_tensor_file* file, int64_t* count);
ATTEND_API attend_status attend_tensor_file_at(const attend_tensor_file* file, int64_t index,
                                               const char** name, attend_view* view);
ATTEND_API attend_status attend_tensor_file_find(const attend_tensor_file* file, const char* name,
                                                 attend_view* view);
ATTEND_API attend_status attend_tensor_file_metadata_count(const attend_tensor_file* file,
                                                           int64_t* count);
ATTEND_API attend_status attend_tensor_file_metadata_at(const attend_tensor_file* file,
                                                        int64_t index, const char** key,
                                                        const char** value);
ATTEND_API attend_status attend_tensor_file_metadata_find(const attend_tensor_file* file,
                                                          const char* key, const char** value);
ATTEND_API void attend_tensor_file_destroy(attend_tensor_file* file);

/* ---- traces: trace.h ------------------------------------------------------------------------ */

typedef struct attend_trace attend_trace;
ATTEND_API attend_status attend_trace_attention(const attend_view* q, const attend_view* k,
                                                const attend_view* v,
                                                const attend_attention_options* options,
                                                attend_context* context, attend_trace** made);
ATTEND_API attend_status attend_trace_count(const attend_trace* trace, int64_t* count);
ATTEND_API attend_status attend_trace_at(const attend_trace* trace, int64_t index,
                                         const char** name, const char** formula, const char** axes,
                                         attend_view* view);
ATTEND_API attend_status attend_trace_find(const attend_trace* trace, const char* name,
                                           attend_view* view);
ATTEND_API attend_status attend_trace_save(const attend_trace* trace, const char* path);
ATTEND_API void attend_trace_destroy(attend_trace* trace);

/* ---- key-value caches: kv_cache.h. One thread at a time. ------------------------------------- */

typedef struct attend_kv_cache_options {
  size_t struct_size;
  int64_t batch; /* 0: 1 */
  int64_t key_heads;
  int64_t d_k;
  int64_t d_v; /* 0: as d_k */
  int64_t capacity;
  int64_t page_size; /* 0: dense */
  int64_t pages;     /* 0: enough for all to be full */
  int32_t dtype;
  int32_t reserved;
} attend_kv_cache_options;

typedef struct attend_kv_cache attend_kv_cache;
ATTEND_API attend_status attend_kv_cache_create(const attend_kv_cache_options* options,
                                                attend_kv_cache** made);
/* lengths NULL: all rows are tokens. */
ATTEND_API attend_status attend_kv_cache_append(attend_kv_cache* cache, const attend_view* k,
                                                const attend_view* v, const attend_view* lengths);
ATTEND_API attend_status attend_kv_cache_truncate(attend_kv_cache* cache, int64_t b,
                                                  int64_t length);
ATTEND_API attend_status attend_kv_cache_length(const attend_kv_cache* cache, int64_t b,
                                                int64_t* length);
ATTEND_API attend_status attend_kv_cache_free_pages(const attend_kv_cache* cache, int64_t* pages);
/* As attention takes them, to be read only, until the cache changes. Each may be NULL. */
ATTEND_API attend_status attend_kv_cache_views(attend_kv_cache* cache, attend_view* keys,
                                               attend_view* values, attend_view* key_lengths,
                                               attend_view* block_table);
/* Of a cache of ATTEND_I8: its scales, to be given with its keys and values. Of any other, nothing:
   data is NULL. Each may be NULL. */
ATTEND_API attend_status attend_kv_cache_scales(attend_kv_cache* cache, attend_view* k_scales,
                                                attend_view* v_scales);
ATTEND_API void attend_kv_cache_destroy(attend_kv_cache* cache);

/* ---- training: what forward saves for backward, and the gradients --------------------------- */

typedef struct attend_saved attend_saved;
ATTEND_API void attend_saved_destroy(attend_saved* saved);

/* First the inputs: "dx", or "dquery", "dkey", "dvalue"; of a block "dx", "dmemory". Then bias,
 * sinks and alibi if the options had them: "dbias", "dsinks", "dalibi"; of a block "self.dbias",
 * "cross.dbias" and so on. Then all parameters by name. */
typedef struct attend_gradients attend_gradients;
ATTEND_API attend_status attend_gradients_count(const attend_gradients* gradients, int64_t* count);
ATTEND_API attend_status attend_gradients_at(const attend_gradients* gradients, int64_t index,
                                             const char** name, attend_view* view);
ATTEND_API attend_status attend_gradients_find(const attend_gradients* gradients, const char* name,
                                               attend_view* view);
ATTEND_API void attend_gradients_destroy(attend_gradients* gradients);

/* ---- a multi-head attention layer: multi_head_attention.h ------------------------------------ */

enum { ATTEND_PAIRS_HALVES = 0, ATTEND_PAIRS_NEIGHBOURS = 1 }; /* pairing */

typedef struct attend_rotary {
  size_t struct_size;
  double base; /* 0: 10000 */
  int64_t dim; /* 0: all d_k */
  int32_t pairing;
  int32_t reserved;
} attend_rotary;

typedef struct attend_layer_options {
  size_t struct_size;
  int64_t model_dim;
  int64_t heads;     /* 0: 1 */
  int64_t key_heads; /* 0: as heads */
  int64_t d_k;       /* 0: model_dim / heads */
  int64_t d_v;       /* 0: as d_k */
  int64_t key_dim;   /* 0: model_dim */
  int64_t value_dim; /* 0: key_dim */
  int32_t no_bias;
  int32_t no_output_projection;
  const attend_rotary* rotary; /* NULL: none */
  uint64_t seed;
  int32_t dtype;
  int32_t reserved;
} attend_layer_options;

enum { ATTEND_WEIGHTS_AUTOMATIC = 0, ATTEND_WEIGHTS_OUT_IN = 1, ATTEND_WEIGHTS_IN_OUT = 2 };

/* How the tensors of a file are named and laid out. */
typedef struct attend_weights_format {
  size_t struct_size;
  const char* prefix;          /* NULL: "" */
  int64_t heads;               /* 0: from the file's metadata */
  int64_t key_heads;           /* 0: from the metadata, else from the shapes */
  const attend_rotary* rotary; /* NULL: from the metadata */
  int32_t orientation;
  int32_t no_output_projection; /* the file has no W^O */
} attend_weights_format;

typedef struct attend_layer attend_layer;
ATTEND_API attend_status attend_layer_create(const attend_layer_options* options,
                                             attend_layer** made);
ATTEND_API attend_status attend_layer_load(const char* path, const attend_weights_format* format,
                                           attend_layer** made);
ATTEND_API attend_status attend_layer_load_from(const attend_tensor_file* file,
                                                const attend_weights_format* format,
                                                attend_layer** made);
ATTEND_API attend_status attend_layer_save(const attend_layer* layer, const char* path,
                                           int32_t per_head);
ATTEND_API void attend_layer_destroy(attend_layer* layer);
/* A copy in another type, each weight rounded once. */
ATTEND_API attend_status attend_layer_to(const attend_layer* layer, int32_t dtype,
                                         attend_layer** made);
/* A copy for inference whose weights are i8, each row with a scale of its own: parameters
 * q.weight_scales and so on, f32. It has no gradients. */
ATTEND_API attend_status attend_layer_quantize(const attend_layer* layer, attend_layer** made);
/* With every size filled in. */
ATTEND_API attend_status attend_layer_get_options(const attend_layer* layer,
                                                  attend_layer_options* options);

/* The weights. They may be changed while no other call uses the layer: from the first view on,
 * until attend_layer_end_writing(). In between the layer does not keep them packed, and calls with
 * few rows take longer. After it the views may still be read; ask again before you write. */
ATTEND_API attend_status attend_layer_parameter_count(const attend_layer* layer, int64_t* count);
ATTEND_API attend_status attend_layer_parameter_at(attend_layer* layer, int64_t index,
                                                   const char** name, attend_view* view);
ATTEND_API attend_status attend_layer_parameter_find(attend_layer* layer, const char* name,
                                                     attend_view* view);
ATTEND_API attend_status attend_layer_end_writing(attend_layer* layer);

/* key and value NULL: self-attention of query. */
ATTEND_API attend_status attend_layer_forward(const attend_layer* layer, const attend_view* query,
                                              const attend_view* key, const attend_view* value,
                                              const attend_attention_options* options,
                                              const attend_attention_outputs* outputs,
                                              attend_context* context, attend_tensor** made);
ATTEND_API attend_status attend_layer_trace(const attend_layer* layer, const attend_view* query,
                                            const attend_view* key, const attend_view* value,
                                            const attend_attention_options* options,
                                            attend_context* context, attend_trace** made);
ATTEND_API attend_status attend_layer_forward_train(
    const attend_layer* layer, const attend_view* query, const attend_view* key,
    const attend_view* value, const attend_attention_options* options, attend_context* context,
    attend_tensor** made, attend_saved** saved);
ATTEND_API attend_status attend_layer_backward(const attend_layer* layer, const attend_view* dy,
                                               const attend_saved* saved, attend_context* context,
                                               attend_gradients** made);

/* Token by token: a cache for this layer, of its type (one of ATTEND_I8 with the same sizes, from
   attend_kv_cache_create, fits too), self-attention of new tokens, and its two steps. */
ATTEND_API attend_status attend_layer_make_cache(const attend_layer* layer, int64_t batch,
                                                 int64_t capacity, int64_t page_size, int64_t pages,
                                                 attend_kv_cache** made);
ATTEND_API attend_status attend_layer_forward_cached(const attend_layer* layer,
                                                     const attend_view* x, attend_kv_cache* cache,
                                                     const attend_attention_options* options,
                                                     const attend_view* lengths,
                                                     attend_context* context, attend_tensor** made);
ATTEND_API attend_status attend_layer_append(const attend_layer* layer, const attend_view* key,
                                             const attend_view* value, attend_kv_cache* cache,
                                             const attend_view* lengths, attend_context* context);
ATTEND_API attend_status attend_layer_attend(const attend_layer* layer, const attend_view* query,
                                             const attend_kv_cache* cache,
                                             const attend_attention_options* options,
                                             attend_context* context, attend_tensor** made);

/* ---- the block around it: block.h ------------------------------------------------------------ */

enum { ATTEND_GELU = 0, ATTEND_RELU = 1, ATTEND_GELU_TANH = 2, ATTEND_SWIGLU = 3 }; /* activation */
enum { ATTEND_NORM_POST = 0, ATTEND_NORM_PRE = 1, ATTEND_NORM_NONE = 2 };           /* placement */
enum { ATTEND_LAYER_NORM = 0, ATTEND_RMS_NORM = 1 };                                /* norm */

typedef struct attend_block_options {
  size_t struct_size;
  const attend_layer_options* attention;
  int64_t memory_dim; /* 0: model_dim */
  int64_t hidden_dim; /* 0: no feed-forward network */
  double epsilon;     /* 0: 1e-5 */
  int32_t cross;      /* a second attention, over a memory */
  int32_t activation;
  int32_t placement;
  int32_t norm;
} attend_block_options;

typedef struct attend_block attend_block;
ATTEND_API attend_status attend_block_create(const attend_block_options* options,
                                             attend_block** made);
ATTEND_API attend_status attend_block_load(const char* path, attend_block** made);
ATTEND_API attend_status attend_block_save(const attend_block* block, const char* path);
ATTEND_API void attend_block_destroy(attend_block* block);
ATTEND_API attend_status attend_block_to(const attend_block* block, int32_t dtype,
                                         attend_block** made);
ATTEND_API attend_status attend_block_quantize(const attend_block* block, attend_block** made);
ATTEND_API attend_status attend_block_get_options(const attend_block* block,
                                                  attend_block_options* options);
ATTEND_API attend_status attend_block_parameter_count(const attend_block* block, int64_t* count);
ATTEND_API attend_status attend_block_parameter_at(attend_block* block, int64_t index,
                                                   const char** name, attend_view* view);
ATTEND_API attend_status attend_block_parameter_find(attend_block* block, const char* name,
                                                     attend_view* view);
ATTEND_API attend_status attend_block_end_writing(attend_block* block);

/* memory NULL: for a block without cross. */
ATTEND_API attend_status attend_block_forward(const attend_block* block, const attend_view* x,
                                              const attend_view* memory,
                                              const attend_attention_options* self,
                                              const attend_attention_options* cross,
                                              attend_context* context, attend_tensor** made);
ATTEND_API attend_status attend_block_trace(const attend_block* block, const attend_view* x,
                                            const attend_view* memory,
                                            const attend_attention_options* self,
                                            const attend_attention_options* cross,
                                            attend_context* context, attend_trace** made);
ATTEND_API attend_status attend_block_forward_train(const attend_block* block, const attend_view* x,
                                                    const attend_view* memory,
                                                    const attend_attention_options* self,
                                                    const attend_attention_options* cross,
                                                    attend_context* context, attend_tensor** made,
                                                    attend_saved** saved);
ATTEND_API attend_status attend_block_backward(const attend_block* block, const attend_view* dy,
                                               const attend_saved* saved, attend_context* context,
                                               attend_gradients** made);

/* Caches of the tokens so far and of a memory that does not change, [batch, Tm, memory_dim]. */
ATTEND_API attend_status attend_block_make_cache(const attend_block* block, int64_t batch,
                                                 int64_t capacity, int64_t page_size, int64_t pages,
                                                 attend_kv_cache** made);
ATTEND_API attend_status attend_block_make_memory_cache(const attend_block* block,
                                                        const attend_view* memory,
                                                        const attend_view* lengths,
                                                        attend_context* context,
                                                        attend_kv_cache** made);
/* memory NULL: for a block without cross. */
ATTEND_API attend_status attend_block_forward_cached(const attend_block* block,
                                                     const attend_view* x, attend_kv_cache* cache,
                                                     const attend_kv_cache* memory,
                                                     const attend_attention_options* self,
                                                     const attend_attention_options* cross,
                                                     const attend_view* lengths,
                                                     attend_context* context, attend_tensor** made);

/* ---- ATTEND_INIT(type): a struct of defaults ------------------------------------------------- */

#ifdef __cplusplus
} /* extern "C" */

template <class Struct>
inline Struct attend_init() noexcept {
  Struct made = Struct();
  made.struct_size = sizeof(Struct);
  return made;
}
#define ATTEND_INIT(type) attend_init<type>()
#else
#define ATTEND_INIT(type) ((type){.struct_size = sizeof(type)})
#endif
/* NOLINTEND(modernize-*) */
