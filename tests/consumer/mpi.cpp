// Attention over the ranks of an MPI job, from an installed attend.
#include <attend/mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int status = 1;
  {
    attend::mpi::Group group(MPI_COMM_WORLD);
    const auto layout = attend::distributed::Layout::serpentine({600}, group.size());
    attend::Tensor x({1, 2, layout.owned(group.rank()), 8}), out(x.shape());
    for (std::int64_t n = 0; n < x.count(); ++n) x.data<float>()[n] = 1;
    attend::distributed::attention(group, {layout, layout}, x, x, x, out);
    status = out.data<float>()[0] == 1 ? 0 : 1;
    std::printf("rank %d of %d: %g\n", group.rank(), group.size(),
                static_cast<double>(out.data<float>()[0]));
  }
  MPI_Finalize();
  return status;
}
