/* Nobody,
 * word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word
 * word word. */
const char *a = "/* nobody */", b = '"'; // Somebody
// else.
   /* A table:
         name   nobody
      whoever. */
