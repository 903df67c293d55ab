; Definitions
(function_definition name: (word) @name) @definition.function
(program (variable_assignment name: (variable_name) @name) @definition.constant)
(program (declaration_command (variable_assignment name: (variable_name) @name) @definition.constant))

; References
(command name: (command_name (word) @name)) @reference.call
(command name: (command_name (word) @callee) argument: (word) @name (#any-of? @callee "source" ".")) @reference.import
(simple_expansion (variable_name) @name) @reference.use
(expansion (variable_name) @name) @reference.use

; Words for the search
(comment) @text
(string_content) @text
