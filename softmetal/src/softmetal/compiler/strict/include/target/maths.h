// Instructions for functions of fast maths: none are needed to check a source.
#ifndef SOFTMETAL_TARGET_MATHS_H
#define SOFTMETAL_TARGET_MATHS_H
#endif
