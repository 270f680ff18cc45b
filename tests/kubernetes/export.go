package mutating

// CompilePolicy is the compiler of the API server for policies.
var CompilePolicy = compilePolicy
