# Installing: headers, library, and what find_package(attend) and pkg-config need. Everything finds
# the rest from its own place, so an installed tree may be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attend)

install(TARGETS attend EXPORT attendTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/attend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN mpi.h EXCLUDE)
install(EXPORT attendTargets NAMESPACE attend:: DESTINATION ${package_dir})

# The component view, which may need zlib, is apart: nobody else has to have it.
install(TARGETS attend_view EXPORT attendViewTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT attendViewTargets NAMESPACE attend:: DESTINATION ${package_dir})
find_package(ZLIB QUIET)

# The component mpi, of the MPI that it was built for.
if(ATTEND_MPI)
  install(TARGETS attend_mpi EXPORT attendMpiTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES include/attend/mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attend)
  install(EXPORT attendMpiTargets NAMESPACE attend:: DESTINATION ${package_dir})
endif()

# What a C++ compiler links by itself, and a C program with a static attend has to be told.
set(attend_runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER attend_runtime INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m|atomic)$")
list(REMOVE_DUPLICATES attend_runtime)
list(TRANSFORM attend_runtime PREPEND "-l" OUTPUT_VARIABLE pc_runtime)
list(JOIN pc_runtime " " pc_runtime)
string(APPEND pc_runtime " -pthread")
if(CMAKE_DL_LIBS)
  string(APPEND pc_runtime " -l${CMAKE_DL_LIBS}")
endif()
if(NOT BUILD_SHARED_LIBS)   # all that is here is static, whether pkg-config is asked for --static or not
  set(pc_attend " ${pc_runtime}")
  if(ZLIB_FOUND)
    set(pc_view " -lz")
  endif()
endif()

# Versions that a program built against this one can be used with: as the SONAME says.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(attendConfigVersion.cmake COMPATIBILITY ${compatibility})
configure_package_config_file(cmake/attendConfig.cmake.in attendConfig.cmake
  INSTALL_DESTINATION ${package_dir})
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/attendConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/attendConfigVersion.cmake
  DESTINATION ${package_dir})

# The folders in the .pc files count from where they are. An absolute folder stays as it is.
file(RELATIVE_PATH pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
cmake_path(APPEND pc_libdir "\${prefix}" ${CMAKE_INSTALL_LIBDIR})
cmake_path(APPEND pc_includedir "\${prefix}" ${CMAKE_INSTALL_INCLUDEDIR})
set(pc_files attend attend-view)
if(ATTEND_MPI)
  list(APPEND pc_files attend-mpi)
endif()
foreach(pc ${pc_files})
  configure_file(cmake/${pc}.pc.in ${pc}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
