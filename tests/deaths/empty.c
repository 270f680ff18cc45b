/* Stands for a library of PyTorch, by its file's name alone. */
extern int vramshim_empty;
int vramshim_empty;
