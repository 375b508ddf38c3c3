// A library of cuBLASLt's functions that computes nothing. Built with ATTEND_FAILING_BLAS it gives
// no handle.
namespace {

#ifdef ATTEND_FAILING_BLAS
constexpr int kCreated = 1;
#else
constexpr int kCreated = 0;
#endif

}  // namespace

extern "C" {

int cublasLtCreate(void**) { return kCreated; }
int cublasLtMatmulDescCreate() { return 0; }
int cublasLtMatmulDescSetAttribute() { return 0; }
int cublasLtMatmulDescDestroy() { return 0; }
int cublasLtMatrixLayoutCreate() { return 0; }
int cublasLtMatrixLayoutDestroy() { return 0; }
int cublasLtMatmulPreferenceCreate() { return 0; }
int cublasLtMatmulPreferenceSetAttribute() { return 0; }
int cublasLtMatmulPreferenceDestroy() { return 0; }
int cublasLtMatmulAlgoGetHeuristic() { return 0; }
int cublasLtMatmulAlgoCheck() { return 0; }
int cublasLtMatmulAlgoConfigGetAttribute() { return 0; }
int cublasLtMatmul() { return 0; }

}  // extern "C"
