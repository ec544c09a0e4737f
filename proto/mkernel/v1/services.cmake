# mkernel_services: the gRPC stubs of peer.proto and control.proto, in <build>/proto/mkernel/v1.
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
find_program(MKERNEL_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# Distributions differ in whether they ship gRPC's CMake files; all of them ship its pkg-config files. Not by
# pkg_check_modules(): it asks twenty times, and an answer about gRPC takes a second and more.
list(TRANSFORM CMAKE_PREFIX_PATH APPEND "/lib/pkgconfig" OUTPUT_VARIABLE grpc_folders)
list(JOIN grpc_folders ":" grpc_folders)
foreach(flags cflags libs)
  if(NOT DEFINED MKERNEL_GRPC_${flags})
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${grpc_folders}:$ENV{PKG_CONFIG_PATH}" ${PKG_CONFIG_EXECUTABLE} --${flags} grpc++
      OUTPUT_VARIABLE answer COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE "(^| )-I" "\\1-isystem" answer "${answer}")
    separate_arguments(answer UNIX_COMMAND "${answer}")
    set(MKERNEL_GRPC_${flags} "${answer}" CACHE INTERNAL "What pkg-config says of grpc++")
  endif()
endforeach()

set(mkernel_generated)
foreach(service peer control)
  set(stem ${CMAKE_BINARY_DIR}/proto/mkernel/v1/${service})
  add_custom_command(
    OUTPUT ${stem}.pb.cc ${stem}.pb.h ${stem}.grpc.pb.cc ${stem}.grpc.pb.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/proto
    COMMAND protobuf::protoc --proto_path=${CMAKE_SOURCE_DIR}/proto --cpp_out=${CMAKE_BINARY_DIR}/proto
            --grpc_out=${CMAKE_BINARY_DIR}/proto --plugin=protoc-gen-grpc=${MKERNEL_GRPC_CPP_PLUGIN}
            mkernel/v1/${service}.proto
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/mkernel/v1/${service}.proto
    VERBATIM)
  list(APPEND mkernel_generated ${stem}.pb.cc ${stem}.grpc.pb.cc)
endforeach()

add_library(mkernel_services STATIC ${mkernel_generated})
# Generated code and the headers of gRPC are not ours to warn about.
target_include_directories(mkernel_services SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/proto)
target_compile_options(mkernel_services PRIVATE -w)
# Every file has its "schemas".
set_target_properties(mkernel_services PROPERTIES UNITY_BUILD OFF)
target_compile_options(mkernel_services PUBLIC ${MKERNEL_GRPC_cflags})
target_link_libraries(mkernel_services PUBLIC ${MKERNEL_GRPC_libs} protobuf::libprotobuf Threads::Threads)
