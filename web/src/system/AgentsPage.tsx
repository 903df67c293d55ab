export default function AgentsPage() { return <p>Soon.</p>; }
