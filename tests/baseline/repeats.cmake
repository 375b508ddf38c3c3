# Whether the baseline is the same with one thread and with three.
foreach(threads 1 3)
  execute_process(COMMAND ${PROGRAM} --reduced --threads ${threads}
    OUTPUT_VARIABLE lines_${threads} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
string(LENGTH "${lines_1}" length)
if(length LESS 100000 OR NOT lines_1 STREQUAL lines_3)
  message(FATAL_ERROR "the lines of one thread (${length} bytes) are not those of three")
endif()
