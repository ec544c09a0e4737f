# mkernel_services: the gRPC stubs of peer.proto and control.proto, in <build>/proto/mkernel/v1.
find_package(Protobuf REQUIRED)
find_program(MKERNEL_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# Distributions differ in whether they ship gRPC's CMake files; all of them ship its pkg-config files, which take half a
# minute to read.
find_package(gRPC CONFIG QUIET)
if(TARGET gRPC::grpc++)
  set(grpc gRPC::grpc++)
else()
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
  set(grpc PkgConfig::GRPCPP)
endif()

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

# What must be made before the rest can be compiled, and all that clang-tidy needs of a build (tools/lint).
add_custom_target(mkernel_messages DEPENDS ${mkernel_generated})

add_library(mkernel_services STATIC ${mkernel_generated})
# Generated code and the headers of gRPC are not ours to warn about.
target_include_directories(mkernel_services SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/proto)
target_compile_options(mkernel_services PRIVATE -w)
# Every file has its "schemas".
set_target_properties(mkernel_services PROPERTIES UNITY_BUILD OFF)
target_link_libraries(mkernel_services PUBLIC ${grpc} protobuf::libprotobuf Threads::Threads)
