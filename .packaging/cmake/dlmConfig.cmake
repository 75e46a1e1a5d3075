# find_package(dlm CONFIG) gives the targets dlm::dlm (shared) and dlm::static.
#
# The oldest CMake with which this was tried.
if(CMAKE_VERSION VERSION_LESS 3.14)
    set(dlm_FOUND FALSE)
    set(dlm_NOT_FOUND_MESSAGE "CMake 3.14 or later is needed, and this is ${CMAKE_VERSION}")
    return()
endif()

# Found from where this file lies, so that the installed tree can be moved.
get_filename_component(_dlm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# Debian's packages have folders of their own, because the kernel DLM's package has a libdlm.so too.
set(_dlm_own "")
if(EXISTS "${_dlm_prefix}/include/dlm-locks/dlm.h")
    set(_dlm_own "/dlm-locks")
endif()

function(_dlm_target target kind file)
    # By path: -ldlm may find the kernel DLM's library, which has the same name.
    foreach(directory lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
        set(path "${_dlm_prefix}/${directory}${_dlm_own}/${file}")
        if(EXISTS "${path}" AND NOT TARGET ${target})
            add_library(${target} ${kind} IMPORTED)
            set_target_properties(${target} PROPERTIES
                IMPORTED_LOCATION "${path}"
                INTERFACE_INCLUDE_DIRECTORIES "${_dlm_prefix}/include${_dlm_own}")
        endif()
    endforeach()
endfunction()

_dlm_target(dlm::dlm SHARED libdlm.so)
_dlm_target(dlm::static STATIC libdlm.a)
if(TARGET dlm::dlm)
    # The number stands in the header, once.
    file(STRINGS "${_dlm_prefix}/include${_dlm_own}/dlm.h" _dlm_line REGEX "^#define DLM_ABI ")
    string(REGEX REPLACE "^#define DLM_ABI " "" _dlm_abi "${_dlm_line}")
    set_target_properties(dlm::dlm PROPERTIES IMPORTED_SONAME "libdlm-locks.so.${_dlm_abi}")
    unset(_dlm_line)
    unset(_dlm_abi)
endif()
if(TARGET dlm::static)
    # The compiler adds its unwinder: the shared one, or that for -static. Without the option, the program has all stores'
    # code, also what it cannot reach.
    set_target_properties(dlm::static PROPERTIES
        INTERFACE_LINK_OPTIONS "-Wl,--gc-sections"
        INTERFACE_LINK_LIBRARIES "util;rt;pthread;m;dl")
endif()
if(NOT TARGET dlm::dlm AND NOT TARGET dlm::static)
    set(dlm_FOUND FALSE)
    set(dlm_NOT_FOUND_MESSAGE "neither libdlm.so nor libdlm.a is in ${_dlm_prefix}/lib")
endif()
unset(_dlm_own)
unset(_dlm_prefix)
