; Definitions
(class name: [(constant) @name (scope_resolution name: (constant) @name)]) @definition.class
(module name: [(constant) @name (scope_resolution name: (constant) @name)]) @definition.module
(method name: (_) @name) @definition.method
(singleton_method name: (_) @name) @definition.method
(alias name: (_) @name) @definition.method
(assignment left: (constant) @name) @definition.constant
(call method: (identifier) @callee arguments: (argument_list . (string (string_content) @name)) block: (_)
  (#any-of? @callee "it" "test" "specify")) @definition.test

; References
(call method: [(identifier) (constant)] @name) @reference.call
(superclass [(constant) @name (scope_resolution name: (constant) @name)]) @reference.type
(body_statement (identifier) @name) @reference.use
(argument_list (identifier) @name) @reference.use
(constant) @name @reference.type
(call method: (identifier) @callee arguments: (argument_list (string (string_content) @name))
  (#any-of? @callee "require" "require_relative")) @reference.import

; Words for the search
(comment) @text
(string_content) @text
