# Kernels for NVIDIA GPUs: each .cu file becomes a module, machine code that the library holds as
# bytes and hands to the driver at run time. Without nvcc there are none, and the rows say so.
# They take minutes to compile: AUTO is ON where there is a GPU as well, so that nobody waits for what
# cannot run here. The test cuda.compile makes them where there is none.
set(ATTEND_CUDA AUTO CACHE STRING "Kernels for NVIDIA GPUs: ON, OFF, or AUTO: where nvcc and a GPU are found")
set_property(CACHE ATTEND_CUDA PROPERTY STRINGS AUTO ON OFF)
find_program(ATTEND_NVCC NAMES $ENV{NVCC} nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(ATTEND_NVCC)
if(ATTEND_CUDA STREQUAL ON AND NOT ATTEND_NVCC)
  message(FATAL_ERROR "ATTEND_CUDA is ON, and there is no nvcc: put it into the PATH, or set ATTEND_NVCC")
endif()

set(cuda_on ${ATTEND_CUDA})
if(ATTEND_CUDA STREQUAL AUTO)
  set(cuda_on OFF)
  if(ATTEND_NVCC AND EXISTS /dev/nvidiactl)
    set(cuda_on ON)
  endif()
endif()

set(cuda_source ${PROJECT_SOURCE_DIR}/src/cuda)
set(cuda_binary ${CMAKE_CURRENT_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${cuda_binary})
set(ATTEND_CUDA_MODULES "")
set(cuda_table "")
set(cuda_bytes "")

# attend_cuda_module(name file flags...)
function(attend_cuda_module name file)
  set(image ${cuda_binary}/${name}.bin)
  add_custom_command(OUTPUT ${image}
    COMMAND ${ATTEND_NVCC} -std=c++20 -O3 -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            ${ARGN} -MD -MT ${image} -MF ${image}.d -o ${image} ${cuda_source}/${file}
    DEPENDS ${cuda_source}/${file} DEPFILE ${image}.d
    COMMENT "Compiling src/cuda/${file} as ${name}" VERBATIM)
  set(ATTEND_CUDA_MODULES ${ATTEND_CUDA_MODULES} ${image} PARENT_SCOPE)
  string(APPEND cuda_bytes "ATTEND_IMAGE(${name}, \"${image}\")\n")
  string(APPEND cuda_table "    {\"${name}\", attend_cuda_${name}},\n")
  set(cuda_bytes "${cuda_bytes}" PARENT_SCOPE)
  set(cuda_table "${cuda_table}" PARENT_SCOPE)
endfunction()

set(cuda_version 0)
if(ATTEND_NVCC AND cuda_on)
  execute_process(COMMAND ${ATTEND_NVCC} --version OUTPUT_VARIABLE cuda_says)
  if(cuda_says MATCHES "release ([0-9]+)\\.([0-9]+)")
    math(EXPR cuda_version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
  endif()
endif()
if(cuda_version GREATER_EQUAL 12080)
  # For every GPU from sm_80 on: machine code of two of them, and what the driver compiles for others.
  set(any -fatbin -Xfatbin -compress-all -fmad=false --expt-relaxed-constexpr
      -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90,code=sm_90)
  foreach(name portable_backward portable_forward portable_bias portable_inspect portable_inspect_keys portable_weights
          portable_pairs portable_merge portable_elements portable_norm portable_product clamp)
    attend_cuda_module(${name} ${name}.cu ${any})
  endforeach()
  # For Hopper, by its own instructions: a module for each type and d.
  # Keys and values of 8 bits become bf16 in their modules.
  set(hopper -cubin --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a)
  foreach(d 64 128 256)
    foreach(operation forward backward one_query)
      foreach(type bf16 f16)
        attend_cuda_module(${operation}_${type}_${d} ${operation}_sm90.cu ${hopper}
          -DATTEND_TYPE=${type} -DATTEND_D=${d} -DATTEND_BYTES=false)
      endforeach()
    endforeach()
    foreach(operation forward one_query)
      attend_cuda_module(${operation}_i8_${d} ${operation}_sm90.cu ${hopper}
        -DATTEND_TYPE=bf16 -DATTEND_D=${d} -DATTEND_BYTES=true)
    endforeach()
  endforeach()
  message(STATUS "Kernels for NVIDIA GPUs: by ${ATTEND_NVCC}")
else()
  message(STATUS "Kernels for NVIDIA GPUs: none")
endif()

add_custom_target(attend_cuda_modules DEPENDS ${ATTEND_CUDA_MODULES})
list(LENGTH ATTEND_CUDA_MODULES cuda_count)
configure_file(${PROJECT_SOURCE_DIR}/cmake/cuda_modules.cpp.in ${cuda_binary}/modules.cpp @ONLY)
target_sources(attend PRIVATE ${cuda_binary}/modules.cpp)
set_source_files_properties(${cuda_binary}/modules.cpp PROPERTIES
  OBJECT_DEPENDS "${ATTEND_CUDA_MODULES}" SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS -fno-lto)
