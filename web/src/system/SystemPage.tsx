export default function SystemPage() { return <p>Soon.</p>; }
